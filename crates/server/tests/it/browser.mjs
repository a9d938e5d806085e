// The browser of every page's test: browser.rs puts this beside their scripts.

import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

export const browser = await puppeteer.launch({
  executablePath: await chromium.executablePath(),
  args: [...chromium.args, "--no-sandbox"],
  headless: "shell",
});

export const fail = message => { throw new Error(message); };

/** A page of this size, and what it complains of. */
export async function open(width, height) {
  const page = await browser.newPage();
  await page.setViewport({width, height});
  const complaints = [];
  page.on("pageerror", error => complaints.push(String(error)));
  page.on("console", message => { if (message.type() === "error") complaints.push(message.text()); });
  return {page, complaints};
}
