// What a person does on the page: run by page.rs with the address of a server and a file for a screenshot.

import { browser, fail, open } from "./browser.mjs";

const [address, screenshot] = process.argv.slice(2);
try {
  const {page, complaints} = await open(1000, 1100);
  // A random model ends its turn at random; not before it has said everything.
  await page.setRequestInterception(true);
  let said = [];
  page.on("request", request => {
    const body = request.url().endsWith("/completions") && JSON.parse(request.postData());
    if (body) said = body.messages.map(message => message.content);
    request.continue(body ? {postData: JSON.stringify({...body, ignore_eos: true})} : {});
  });
  await page.goto(`http://${address}/`);
  await page.waitForFunction(() => document.querySelectorAll("#method option").length > 1);

  // A message under a method and a budget, answered in pieces.
  await page.select("#method", "inertia");
  await page.type("#budget", "40");
  await page.$eval("#tokens", field => { field.value = "24"; });
  await page.type("#text", "The harbour was quiet and the boats lay still. ".repeat(6));
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector(".assistant details"));
  const seen = await page.evaluate(() => ({
    figures: document.querySelector(".assistant .figures").textContent,
    summary: document.querySelector(".assistant summary").textContent,
    held: document.querySelectorAll(".assistant .held").length,
    tokens: document.querySelectorAll(".assistant .tokens span").length,
    answer: document.querySelector(".assistant div").textContent,
    memory: document.getElementById("memory").textContent,
  }));
  if (!seen.figures.includes("40 entries retained (budget 40)")) fail(`figures: ${seen.figures}`);
  if (!(seen.held > 0 && seen.held <= 40 && seen.held < seen.tokens)) fail(`${seen.held} of ${seen.tokens} held`);
  if (!seen.summary.includes(`${seen.held} of`)) fail(`summary: ${seen.summary}`);
  if (!seen.memory.includes(" of ")) fail(`memory: ${seen.memory}`);
  await page.click(".assistant summary");
  await page.screenshot({path: screenshot});

  // A long answer, stopped.
  await page.$eval("#tokens", field => { field.value = "100000"; });
  await page.type("#text", "More");
  await page.click("#send");
  // As it grows beyond the window its end stays in view, until somebody scrolls up.
  const below = () => page.evaluate(() => {
    const {scrollHeight, clientHeight, scrollTop} = document.documentElement;
    return scrollHeight - clientHeight - scrollTop;
  });
  const taller = height => page.waitForFunction(height => document.documentElement.scrollHeight > height, {}, height);
  await taller(1800);
  if (await below() > 40) fail(`the end of a long answer is ${await below()} pixels below the window`);
  await page.evaluate(() => window.scrollTo(0, 200));
  await taller(2300);
  if (await below() < 900) fail("the page scrolls away from who reads");
  await page.click("#stop");
  await page.waitForFunction(() => document.querySelectorAll(".assistant .figures")[1].textContent === "stopped");

  // A new conversation while an answer comes: nothing of the old one is in it.
  await page.type("#text", "Forget this");
  await page.click("#send");
  await page.waitForFunction(() => document.querySelectorAll(".assistant")[2]?.textContent.length > 50);
  await page.$eval("#reset", button => button.click());
  await page.waitForFunction(() => !document.getElementById("send").disabled);
  await page.$eval("#tokens", field => { field.value = "4"; });
  await page.type("#text", "Anew");
  await page.click("#send");
  await page.waitForFunction(() => document.querySelector(".assistant details"));
  if (said.length !== 1 || said[0] !== "Anew") fail(`the new conversation begins with ${said}`);

  // An error is shown, and the conversation goes on from before it.
  await page.$eval("#budget", field => { field.value = "nothing"; });
  await page.type("#text", "Again");
  await page.click("#send");
  await page.waitForFunction(() => document.querySelector(".error"));
  const unexpected = complaints.filter(text => !text.includes("400"));
  if (unexpected.length) fail(unexpected.join("\n"));
  console.log("all as expected");
} finally {
  await browser.close();
}
