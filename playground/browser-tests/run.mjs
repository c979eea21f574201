// The playground in headless Chromium: every panel works, nothing is logged as an error, and no request leaves this machine.
// Run it after `npm run build`: node browser-tests/run.mjs [folder for screenshots]
import assert from "node:assert/strict";
import { createReadStream, existsSync, mkdirSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const ROOT = fileURLToPath(new URL("../dist/", import.meta.url));
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm" };
const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
const PANELS = ["paper", "motor", "arm", "quadrotor", "file"];
const pictures = process.argv[2];

const server = createServer((request, response) => {
  const path = normalize(new URL(request.url, "http://localhost").pathname);
  const file = join(ROOT, path.endsWith("/") ? `${path}index.html` : path);
  if (!file.startsWith(ROOT) || !existsSync(file)) return response.writeHead(404).end();
  const type = TYPES[extname(file)] ?? "application/octet-stream";
  response.writeHead(200, { "content-type": type, "content-length": statSync(file).size });
  return createReadStream(file).pipe(response);
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const home = `http://127.0.0.1:${server.address().port}/`;
const executablePath = process.env.CHROMIUM ?? BROWSERS.find(existsSync);
if (!executablePath) throw new Error("no Chromium was found: install it, or set CHROMIUM to its path");
const browser = await chromium.launch({
  executablePath,
  // SwiftShader draws the robots on machines without a graphics card.
  args: [
    ...["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"],
    ...["--disable-background-networking", "--disable-component-update", "--disable-sync"],
  ],
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
  assert.equal(await page.locator(".plot canvas").count(), 6);
  assert.ok(Number(await page.textContent(".gauge output")) < 1);
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

test("the link to the present settings can be copied", async (page) => {
  await settled(page);
  await slide(page, "noise", "ArrowLeft", 3);
  await page.click("text=Copy link");
  await page.waitForSelector("text=Link copied");
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.equal(copied, page.url());
  assert.match(copied, /noise=0\.0\d+/);
}, { permissions: ["clipboard-read", "clipboard-write"] });

test("the rule without a learning rate needs none", async (page) => {
  const first = await settled(page);
  await page.goto(`${home}#paper?gain=0.5&noise=0.01&rule=mgaps&seed=3`);
  const slow = await settled(page, first);
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

test("200,000 steps and their plots are quick", async (page) => {
  await settled(page);
  const times = [];
  for (let i = 0; i < 5; i++) {
    const before = await page.textContent(".verdict");
    await slide(page, "noise", i % 2 ? "ArrowRight" : "ArrowLeft", 1);
    await settled(page, before);
    times.push(Number(await page.getAttribute(".verdict", "data-milliseconds")));
  }
  const best = Math.min(...times); // other programs may slow the machine down
  console.log(`      two runs of 200,000 steps, and their plots: ${best} ms`);
  assert.ok(best < 300, `${times} ms`);
});

test("the paper's panel is small, and does not load the robots", async (page) => {
  const sizes = new Map();
  page.on("response", async (response) => sizes.set(response.url(), (await response.body().catch(() => "")).length));
  await page.reload();
  await settled(page);
  const total = [...sizes.values()].reduce((sum, size) => sum + size, 0);
  const paints = [];
  for (let i = 0; i < 3; i++) {
    paints.push(await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime));
    await page.reload();
    await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0);
  }
  const paint = Math.min(...paints); // other programs may slow the machine down
  console.log(`      ${(total / 1000).toFixed(0)} kB without compression, first paint after ${paint.toFixed(0)} ms`);
  assert.ok(total < 500_000, `${total} bytes`);
  assert.ok(paint < 1000, `${paints} ms`);
  assert.ok(![...sizes.keys()].some((url) => url.includes("mujoco")));
});

test("a setting downloads as TOML and as C", async (page) => {
  await settled(page);
  for (const [text, name] of [["TOML", "paper_example.toml"], ["C", "paper_mgaps.c"]]) {
    const link = page.locator(".buttons > *").filter({ hasText: new RegExp(`^${text}$`) });
    const [download] = await Promise.all([page.waitForEvent("download"), link.click()]);
    assert.equal(download.suggestedFilename(), name);
  }
});

const number = (page, name) => page.evaluate((key) => Number(document.querySelector(".verdict").dataset[key]), name);
/** Wait until a robot has run for so many steps. */
const ran = (page, steps) =>
  page.waitForFunction((count) => Number(document.querySelector(".verdict")?.dataset.steps) > count, steps, { timeout: 120_000 });

for (const [name, steps] of [["arm", 1500], ["quadrotor", 3500], ["file", 2500]]) {
  test(`the robot "${name}" tunes itself`, async (page) => {
    const sizes = new Map();
    page.on("response", (response) => sizes.set(response.url(), Number(response.headers()["content-length"] ?? 0)));
    await page.goto(`${home}#${name}?speed=8${name === "quadrotor" ? "&wind=3" : ""}`);
    await ran(page, steps);
    assert.ok((await number(page, "ratio")) > 1.3, await page.textContent(".verdict"));
    const total = [...sizes.values()].reduce((sum, size) => sum + size, 0);
    console.log(`      ${(total / 1e6).toFixed(1)} MB without compression`);
    assert.ok(total > 1e6 && total < 15e6, `${total} bytes`);
    assert.equal(await page.locator(".plot canvas").count(), 4);
  });
}

test("a payload changes the estimate, by the keyboard alone", async (page) => {
  await page.goto(`${home}#arm?speed=8&start=nominal`);
  await ran(page, 1500);
  const light = await number(page, "estimate");
  await slide(page, "payload", "End", 1);
  await ran(page, 4000);
  const heavy = await number(page, "estimate");
  assert.ok(heavy > light + 0.4, `${light} kg, then ${heavy} kg`);
  assert.match(page.url(), /payload=1/);
});

test("the guard rejects a sensor that is unplugged", async (page) => {
  await page.goto(`${home}#arm?speed=2`);
  await ran(page, 300);
  const unplug = page.getByRole("button", { name: /Unplug/ });
  await unplug.click();
  await page.waitForFunction(() => document.querySelector(".events").textContent.includes("measurement was rejected"));
  await page.waitForFunction(() => document.querySelector(".events").textContent.includes("safe control"), null, { timeout: 60_000 });
  await unplug.click();
  assert.equal(await unplug.getAttribute("aria-pressed"), "false");
});

test("the mouse pulls both robots", async (page) => {
  await page.goto(`${home}#arm?start=nominal&speed=8`);
  await ran(page, 1500);
  await page.getByRole("button", { name: "Pause" }).click();
  const before = Number(/tool is ([\d.]+)/.exec(await page.textContent(".verdict"))[1]);
  const box = await page.locator(".stage canvas").boundingBox();
  // The cursor tells where the left robot is. Its highest point is the shoulder, and the point farthest from it is the tool.
  const robot = [];
  for (let y = 0.1; y < 0.95; y += 0.025) {
    for (let x = 0.05; x < 0.5; x += 0.0125) {
      const [px, py] = [box.x + x * box.width, box.y + y * box.height];
      await page.mouse.move(px, py);
      const cursor = await page.evaluate(() => document.querySelector(".stage canvas").style.cursor);
      if (cursor === "grab") robot.push([px, py]);
    }
  }
  const shoulder = robot[0];
  assert.ok(shoulder, "no robot under the mouse");
  const away = ([px, py]) => Math.hypot(px - shoulder[0], py - shoulder[1]);
  const grabbed = robot.sort((p, q) => away(q) - away(p))[0];
  await page.mouse.move(...grabbed);
  await page.mouse.down();
  await page.mouse.move(grabbed[0] + 80, grabbed[1] - 120, { steps: 5 });
  await page.getByRole("button", { name: "Go on" }).focus();
  await page.keyboard.press("Enter");
  await ran(page, (await number(page, "steps")) + 400);
  await page.mouse.up();
  const [own, fixed] = [...(await page.textContent(".verdict")).matchAll(/([\d.]+) mm/g)].map(([, size]) => Number(size));
  assert.ok(own > 2 * before && fixed > 2 * before, `${before} mm, then ${own} mm and ${fixed} mm`);
});

test("the motor tunes itself, and stops when learning is off", async (page) => {
  await page.goto(`${home}#motor?speed=50`);
  const gain = async () => Number(/Kp ([\d.]+)/.exec(await page.textContent(".verdict"))?.[1] ?? NaN);
  await page.waitForFunction(() => /After (\d+) s/.exec(document.querySelector(".verdict")?.textContent ?? "")?.[1] > 30, null, {
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

test("every input has a label, in every panel", async (page) => {
  for (const panel of PANELS) {
    await page.goto(`${home}#${panel}`);
    await page.waitForSelector(".plot canvas");
    await named(page, panel);
  }
});

async function named(page, panel) {
  const unnamed = await page.evaluate(() =>
    [...document.querySelectorAll("input, select, meter, button, a, canvas[tabindex], progress")].filter(
      (one) => !one.labels?.length && !one.getAttribute("aria-labelledby") && !one.ariaLabel && !one.textContent.trim(),
    ).length,
  );
  assert.equal(unnamed, 0, panel);
}

test("a phone's width has no sideways scrolling", async (page) => {
  for (const panel of PANELS) {
    await page.goto(`${home}#${panel}`);
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

const chosen = tests.filter(({ name }) => name.includes(process.env.ONLY ?? ""));
for (const one of chosen) await run(one);
if (pictures) {
  mkdirSync(pictures, { recursive: true });
  for (const [width, height] of [[1280, 900], [800, 1000], [360, 740]]) {
    for (const colorScheme of ["light", "dark"]) {
      const page = await browser.newPage({ viewport: { width, height }, colorScheme });
      for (const panel of PANELS) {
        await page.goto(`${home}#${panel}${panel === "paper" ? "" : "?speed=8"}${panel === "quadrotor" ? "&wind=3" : ""}`);
        if (panel === "paper") await settled(page);
        else if (panel !== "motor") await ran(page, 3000);
        else await page.waitForFunction(() => /After (\d+) s/.exec(document.querySelector(".verdict")?.textContent)?.[1] > 40);
        await page.screenshot({ path: join(pictures, `${panel}-${width}-${colorScheme}.png`), fullPage: true });
      }
      await page.close();
    }
  }
}
await browser.close();
server.close();
console.log(`${chosen.length - failures} passed, ${failures} failed`);
process.exit(failures ? 1 : 0);
