// The playground in headless Chromium: every panel works, nothing is logged as an error, and no request leaves this machine.
// Run it after `npm run build`: node browser-tests/run.mjs [folder for screenshots]
import assert from "node:assert/strict";
import { createReadStream, existsSync, mkdirSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const ROOT = fileURLToPath(new URL("../dist/", import.meta.url));
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm" };
const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
const pictures = process.argv[2];

const server = createServer((request, response) => {
  const path = normalize(new URL(request.url, "http://localhost").pathname);
  const file = join(ROOT, path.endsWith("/") ? `${path}index.html` : path);
  if (!file.startsWith(ROOT) || !existsSync(file)) return response.writeHead(404).end();
  response.writeHead(200, { "content-type": TYPES[extname(file)] ?? "application/octet-stream" });
  return createReadStream(file).pipe(response);
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const home = `http://127.0.0.1:${server.address().port}/`;
const executablePath = process.env.CHROMIUM ?? BROWSERS.find(existsSync);
if (!executablePath) throw new Error("no Chromium was found: install it, or set CHROMIUM to its path");
const browser = await chromium.launch({
  executablePath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

let failures = 0;
const tests = [];
const test = (name, body, options = {}) => tests.push({ name, body, options });

async function settled(page, before = "") {
  // The best static gain comes last.
  await page.waitForFunction(
    (old) => {
      const text = document.querySelector(".verdict")?.textContent ?? "";
      return text.includes("in hindsight") && text !== old;
    },
    before,
    { timeout: 60_000 },
  );
  return page.textContent(".verdict");
}

const slide = async (page, name, key, times) => {
  await page.focus(`#control-${name}`);
  for (let i = 0; i < times; i++) await page.keyboard.press(key);
};

test("the paper's panel tells that learning beats the fixed gain", async (page) => {
  const text = await settled(page);
  const share = Number(/Learning costs ([\d.]+) %/.exec(text)[1]);
  assert.ok(share < 60, text);
  const end = Number(/ends at ([\d.]*\d)/.exec(text)[1]);
  assert.ok(end > 4 && end < 8, text);
  assert.equal(await page.locator(".plot canvas").count(), 5);
});

test("a slider changes the run and the address, by the keyboard alone", async (page) => {
  const before = await settled(page);
  await slide(page, "gain", "ArrowLeft", 30);
  const after = await settled(page, before);
  assert.notEqual(after, before);
  const address = new URL(page.url()).hash;
  assert.match(address, /gain=0\.\d+/);
  await page.reload();
  assert.equal(await settled(page), after); // the link alone gives the same run
});

test("the rule without a learning rate needs none", async (page) => {
  await page.goto(`${home}#paper?gain=0.5&noise=0.01&rule=mgaps&seed=3`);
  const slow = await settled(page);
  await page.selectOption("#control-rule", "gauss_newton");
  const fast = await settled(page, slow);
  const beyond = (text) => Number(/([\d.]+) % more than the best/.exec(text)?.[1] ?? 0);
  assert.ok(beyond(slow) > 10, slow);
  assert.ok(beyond(fast) < 5, fast);
});

test("the Python script downloads", async (page) => {
  await settled(page);
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("text=Python")]);
  assert.equal(download.suggestedFilename(), "paper_example.py");
});

test("the motor tunes itself, and stops when learning is off", async (page) => {
  await page.goto(`${home}#motor?speed=50`);
  const gain = async () => Number(/Kp ([\d.]+)/.exec(await page.textContent(".verdict"))?.[1] ?? NaN);
  await page.waitForFunction(() => /After (\d+) s/.exec(document.querySelector(".verdict").textContent)?.[1] > 30, null, {
    timeout: 60_000,
  });
  assert.ok((await gain()) > 4, `Kp is ${await gain()}`);
  await page.click("text=Learning is on");
  await page.waitForTimeout(300);
  const held = await gain();
  await page.waitForTimeout(1500);
  assert.equal(await gain(), held);
  assert.equal(await page.getAttribute("text=Learning is off", "aria-pressed"), "false");
});

test("panels change by their links, and the old one stops", async (page) => {
  await settled(page);
  await page.click("nav >> text=A PID loop");
  await page.waitForFunction(() => document.querySelector(".verdict")?.textContent.startsWith("After"));
  await page.click("nav >> text=The paper's example");
  await settled(page);
  assert.equal(await page.locator(".panel").count(), 1);
});

test("every input has a label", async (page) => {
  await settled(page);
  const unnamed = await page.evaluate(() =>
    [...document.querySelectorAll("input, select, meter")].filter(
      (one) => !one.labels?.length && !one.getAttribute("aria-labelledby"),
    ).length,
  );
  assert.equal(unnamed, 0);
});

test("a phone's width has no sideways scrolling", async (page) => {
  for (const panel of ["#paper", "#motor"]) {
    await page.goto(home + panel);
    await page.waitForSelector(".plot canvas");
    const extra = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(extra <= 0, `${panel} is ${extra} pixels too wide`);
  }
}, { viewport: { width: 360, height: 740 } });

async function run({ name, body, options }) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const faults = [];
  page.on("console", (message) => message.type() === "error" && faults.push(message.text()));
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("request", (request) => {
    const { protocol, hostname } = new URL(request.url());
    if (!["data:", "blob:"].includes(protocol) && hostname !== "127.0.0.1") faults.push(`request to ${request.url()}`);
  });
  try {
    await page.goto(home);
    await body(page);
    assert.deepEqual(faults, []);
    console.log(`ok    ${name}`);
  } catch (error) {
    failures++;
    console.log(`FAIL  ${name}\n      ${String(error.message ?? error).split("\n").slice(0, 6).join("\n      ")}`);
  }
  await context.close();
}

for (const one of tests) await run(one);
if (pictures) {
  mkdirSync(pictures, { recursive: true });
  for (const [width, height] of [[1280, 900], [800, 1000], [360, 740]]) {
    for (const colorScheme of ["light", "dark"]) {
      const page = await browser.newPage({ viewport: { width, height }, colorScheme });
      await page.goto(`${home}#paper?gain=1`);
      await settled(page);
      await page.screenshot({ path: join(pictures, `paper-${width}-${colorScheme}.png`), fullPage: true });
      await page.goto(`${home}#motor?speed=50`);
      await page.waitForFunction(() => /After (\d+) s/.exec(document.querySelector(".verdict").textContent)?.[1] > 40);
      await page.screenshot({ path: join(pictures, `motor-${width}-${colorScheme}.png`), fullPage: true });
      await page.close();
    }
  }
}
await browser.close();
server.close();
console.log(`${tests.length - failures} passed, ${failures} failed`);
process.exit(failures ? 1 : 0);
