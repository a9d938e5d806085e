// Looks at a report as a person does, wide and narrow: run by report.rs with the page and a folder for screenshots.

import { browser, fail, open } from "./browser.mjs";
import { pathToFileURL } from "node:url";

const [file, folder] = process.argv.slice(2);
try {
  for (const [name, width] of [["wide", 1200], ["narrow", 360]]) {
    const {page, complaints} = await open(width, 900);
    const asked = [];
    page.on("request", request => { if (!/^(file|data):/.test(request.url())) asked.push(request.url()); });
    // Readable without colour: as somebody sees it who sees none.
    await page.emulateVisionDeficiency("achromatopsia");
    await page.goto(pathToFileURL(file).href);
    await page.screenshot({path: `${folder}/${name}.png`, fullPage: true});
    const seen = await page.evaluate(() => {
      const shown = element => element.offsetParent !== null;
      const drawings = [...document.querySelectorAll("figure svg")].filter(svg => shown(svg.parentElement));
      const luminance = cell => {
        const [red, green, blue] = getComputedStyle(cell).backgroundColor.match(/\d+/g).map(Number);
        return 0.299 * red + 0.587 * green + 0.114 * blue;
      };
      const cells = [...document.querySelectorAll(".heat:not(.fine) td:not(.none)")];
      return {
        overflow: document.documentElement.scrollWidth - window.innerWidth,
        drawings: drawings.length,
        // Pixels that the text of a drawing really has.
        text: Math.min(...drawings.map(svg => {
          const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
          return Math.min(...[...svg.querySelectorAll("text")].map(text => scale * parseFloat(text.getAttribute("font-size"))));
        })),
        outside: drawings.flatMap(svg => [...svg.querySelectorAll("text")].filter(text => {
          const [own, all] = [text.getBoundingClientRect(), svg.getBoundingClientRect()];
          return own.left < all.left - 8 || own.right > all.right + 8;
        }).map(text => text.textContent)),
        rows: document.querySelectorAll(".summary tbody tr").length,
        numbers: cells.every(cell => cell.textContent !== ""),
        contrast: Math.min(255, ...cells.map(cell => Math.abs(
          luminance(cell) - (getComputedStyle(cell).color === "rgb(0, 0, 0)" ? 0 : 255)))),
      };
    });
    if (complaints.length) fail(complaints.join("\n"));
    if (asked.length) fail(`the page asks the network for ${asked}`);
    if (seen.overflow > 0) fail(`${name}: the page is ${seen.overflow} pixels too wide`);
    if (seen.drawings < 1 || seen.rows < 2) fail(`${name}: ${JSON.stringify(seen)}`);
    if (seen.text < 9) fail(`${name}: text of ${seen.text} pixels`);
    if (seen.outside.length) fail(`${name}: cut off: ${seen.outside}`);
    if (!seen.numbers || seen.contrast < 90) fail(`${name}: ${JSON.stringify(seen)}`);
    await page.close();
  }
  console.log("all as expected");
} finally {
  await browser.close();
}
