import { readFile } from "node:fs/promises";
import { describe, expect, it } from "vitest";
import { Controller } from "../src/controllers/paper_mgaps/paper_mgaps.mjs";
import { bestStaticGain, drawNature, localRegret, simulate, type Nature } from "../src/paper/simulation";

async function controllerOf(name: string): Promise<Controller> {
  const url = new URL(`../src/controllers/${name}/${name}.wasm`, import.meta.url);
  const { Controller } = await import(`../src/controllers/${name}/${name}.mjs`);
  return new Controller(await WebAssembly.compile(await readFile(url)));
}

const recorded = JSON.parse(await readFile(new URL("recorded.json", import.meta.url), "utf8"));
const nature: Nature = {
  parameters: recorded.nature.a_star,
  disturbances: Float64Array.from(recorded.nature.w),
  period: recorded.period,
};

describe("the paper's example", () => {
  for (const name of ["mgaps", "mgaps_faster", "gauss_newton"]) {
    it(`gives the gains of Python's run with ${name}`, async () => {
      const trace = simulate(await controllerOf(`paper_${name}`), nature, 1, true);
      const theta: number[] = recorded.paper[name].theta;
      const width = nature.disturbances.length / trace.gain.length;
      // Only the sine of nature differs: browsers do not promise its last bit.
      trace.gain.forEach((gain, row) => expect(gain).toBeCloseTo(theta[row * width]!, 9));
      expect(trace.total / recorded.paper[name].total).toBeCloseTo(1, 9);
    });
  }

  it("has the local regret of Python's run", async () => {
    const trace = simulate(await controllerOf("paper_mgaps"), nature, 1, true);
    const every = 5;
    const sum = recorded.paper.mgaps.local.reduce((total: number, size: number) => total + every * size, 0);
    expect(localRegret(nature, trace, 1e-4, every).at(-1)! / sum).toBeCloseTo(1, 5);
  });

  it("does not move a gain that does not learn", async () => {
    const trace = simulate(await controllerOf("paper_mgaps"), nature, 2, false);
    expect(new Set(trace.gain)).toEqual(new Set([2]));
  });

  it("finds a static gain that no neighbour beats", async () => {
    const controller = await controllerOf("paper_mgaps");
    const best = bestStaticGain(controller, nature);
    for (const factor of [0.8, 0.95, 1.05, 1.25]) {
      expect(simulate(controller, nature, factor * best.gain, false).total).toBeGreaterThan(best.trace.total);
    }
  });

  it("draws the same nature for the same seed", () => {
    const settings = { gain: 1, noise: 0.1, period: 40_000, steps: 200_000, seed: 3 };
    const [one, two] = [drawNature(settings), drawNature(settings)];
    expect(one.disturbances).toEqual(two.disturbances);
    expect(one.parameters).toHaveLength(5);
    const mean = one.disturbances.reduce((sum, w) => sum + w * w, 0) / one.disturbances.length;
    expect(mean).toBeCloseTo(0.01 / (1 - 0.95 ** 2), 2); // the stationary variance
    expect(drawNature({ ...settings, seed: 4 }).disturbances).not.toEqual(one.disturbances);
  });

  it("reaches a high gain over 200,000 steps", async () => {
    const controller = await controllerOf("paper_mgaps");
    const long = drawNature({ gain: 1, noise: 0.1, period: 40_000, steps: 200_000, seed: 0 });
    simulate(controller, long, 1, true); // the first run compiles
    const trace = simulate(controller, long, 1, true);
    expect(trace.gain.at(-1)).toBeGreaterThan(4);
  });
});
