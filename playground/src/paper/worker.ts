/** Computes the runs of the panel beside the page, so that sliders stay smooth. Newer questions replace older ones. */
import { load as loadGaussNewton } from "../controllers/paper_gauss_newton/paper_gauss_newton.mjs";
import { load as loadMgaps, type Controller } from "../controllers/paper_mgaps/paper_mgaps.mjs";
import { load as loadFaster } from "../controllers/paper_mgaps_faster/paper_mgaps_faster.mjs";
import { bestStaticGain, drawNature, localRegret, simulate, type Settings, type Trace } from "./simulation";

export type Rule = "mgaps" | "mgaps_faster" | "gauss_newton";

export interface Question {
  id: number;
  settings: Settings;
  rule: Rule;
}

export type Answer =
  | { id: number; kind: "runs"; learning: Trace; fixed: Trace; milliseconds: number }
  | { id: number; kind: "best"; gain: number; trace: Trace; local: Record<"learning" | "fixed", Float64Array> };

/** The local regret takes the gradient of every so many steps, with the paper's η. */
const EVERY = 50;
const LEARNING_RATE = 1e-4;

const controllers: Promise<Record<Rule, Controller>> = (async () => ({
  mgaps: await loadMgaps(),
  mgaps_faster: (await loadFaster()) as unknown as Controller,
  gauss_newton: (await loadGaussNewton()) as unknown as Controller,
}))();

let newest = -1;
const pause = () => new Promise((resolve) => setTimeout(resolve));

addEventListener("message", async ({ data }: MessageEvent<Question>) => {
  const { id, settings, rule } = data;
  newest = id;
  await pause(); // a newer question may wait already
  if (newest !== id) return;
  const loaded = await controllers;
  const begin = performance.now();
  const nature = drawNature(settings);
  const learning = simulate(loaded[rule], nature, settings.gain, true);
  const fixed = simulate(loaded.mgaps, nature, settings.gain, false);
  const answer: Answer = { id, kind: "runs", learning, fixed, milliseconds: performance.now() - begin };
  postMessage(answer);
  await pause();
  if (newest !== id) return;
  const { gain, trace } = bestStaticGain(loaded.mgaps, nature);
  const regret = (run: Trace) => localRegret(nature, run, LEARNING_RATE, EVERY);
  const local = { learning: regret(learning), fixed: regret(fixed) };
  postMessage({ id, kind: "best", gain, trace, local } satisfies Answer);
});
