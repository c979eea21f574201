import cSource from "../controllers/paper_mgaps/paper_mgaps.c?url";
import cHeader from "../controllers/paper_mgaps/paper_mgaps.h?url";
import { about, button, buttons, choice, element, group, layout, slider, takeAway } from "../controls";
import { Plot, shortNumber } from "../plot";
import { withDefaults, writeAddress } from "../settings";
import { pythonScript, tomlFile } from "./python";
import type { Settings, Trace } from "./simulation";
import type { Answer, Question, Rule } from "./worker";

const STEPS = 200_000;
const RULES: Record<Rule, string> = {
  mgaps: "M-GAPS, paper's η = 10⁻⁴",
  mgaps_faster: "M-GAPS, η = 10⁻²",
  gauss_newton: "Gauss–Newton, no rate",
};
const DEFAULTS = { gain: 1, noise: 0.1, period: 40_000, rule: "mgaps", seed: 0 };
const RANGES = {
  gain: [0.3, 20] as [number, number],
  noise: [0.01, 0.3] as [number, number],
  period: [2_000, 100_000] as [number, number],
  rule: Object.keys(RULES),
  seed: [0, 99_999] as [number, number],
};

export function paperPanel(place: HTMLElement, given: URLSearchParams): () => void {
  const values = withDefaults(DEFAULTS, given, RANGES);
  values.seed = Math.round(values.seed);
  values.period = Math.round(values.period);
  const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
  let id = 0;
  let runs: { learning: Trace; fixed: Trace } | null = null;

  const three = [
    { label: "learning", colour: "--learning" },
    { label: "fixed gain", colour: "--fixed" },
    { label: "best static", colour: "--best", dashed: true },
  ];
  const two = three.slice(0, 2);
  const along = "step";
  const plots = {
    gain: new Plot({ title: "Gain θ", along, series: three, range: [0, null] }),
    cost: new Plot({ title: "Mean cost of a step", along, series: three, logarithmic: true }),
    regret: new Plot({ title: "Static regret: cost beyond the best static gain", along, series: two, logarithmic: true }),
    local: new Plot({ title: "Local regret: Σ |∇F(θ)|² of the exact model", along, series: two, logarithmic: true }),
    mismatch: new Plot({ title: "Model error |φ(x)(â − a*)|", along, series: two, range: [0, null] }),
    error: new Plot({ title: "Tracking error |x|", along, series: three, range: [0, null] }),
  };
  const verdict = element("p", { class: "verdict", role: "status", "aria-live": "polite" }, "Loading the controller …");
  const meter = element("meter", { min: "0.9", max: "1.01", high: "1", optimum: "0.9", "aria-labelledby": "gauge-label" });
  const contraction = element("output", {}, "–");
  const gauge = element(
    "div",
    { class: "gauge" },
    element("span", { id: "gauge-label" }, "Contraction ρ̂"),
    contraction,
    meter,
    element("small", {}, "Below 1, the loop forgets its past, and the gradient of M-GAPS is right."),
  );

  const settings = (): Settings => ({ ...values, steps: STEPS });
  const remember = () => history.replaceState(null, "", writeAddress("paper", values));
  const compute = () => worker.postMessage({ id: ++id, settings: settings(), rule: values.rule as Rule } satisfies Question);
  const ask = () => {
    remember();
    compute();
  };
  const set = <K extends keyof typeof values>(name: K) => (value: (typeof values)[K]) => {
    values[name] = value;
    ask();
  };

  worker.addEventListener("message", ({ data }: MessageEvent<Answer>) => {
    if (data.id !== id) return;
    const received = performance.now();
    if (data.kind === "runs") {
      runs = data;
      showRuns(data.learning, data.fixed, null);
      verdict.dataset.milliseconds = (data.milliseconds + performance.now() - received).toFixed(0);
    } else if (runs !== null) {
      showRuns(runs.learning, runs.fixed, data);
    }
  });
  worker.addEventListener("error", (event) => {
    verdict.textContent = `The controller could not be loaded: ${event.message || "see the browser's console"}`;
  });

  function showRuns(learning: Trace, fixed: Trace, best: Extract<Answer, { kind: "best" }> | null): void {
    const x = learning.step;
    const none = Array.from(x, () => null);
    const far = every(x, COARSE);
    const bestOf = (name: "cost" | "error") => (best === null ? Array.from(far, () => null) : means(best.trace[name], COARSE));
    plots.gain.show([x, learning.gain, fixed.gain, best === null ? none : Array.from(x, () => best.gain)]);
    for (const name of ["cost", "error"] as const) {
      plots[name].show([far, means(learning[name], COARSE), means(fixed[name], COARSE), bestOf(name)]);
    }
    plots.mismatch.show([x, learning.mismatch, fixed.mismatch]);
    const last = learning.gain.at(-1)!;
    const share = learning.total / fixed.total;
    let text = `θ starts at ${shortNumber(values.gain)} and ends at ${shortNumber(last)}. `;
    text += `Learning costs ${percent(share)} of the fixed gain's cost`;
    if (best === null) {
      plots.regret.show([x, none, none]);
      plots.local.show([x, none, none]);
      text += ".";
    } else {
      // The axis is logarithmic: a run that has cost less than the best static gain so far leaves a gap.
      const difference = (trace: Trace) => Array.from(trace.cumulative, (sum, row) => positive(sum - best.trace.cumulative[row]!));
      plots.regret.show([x, difference(learning), difference(fixed)]);
      plots.local.show([x, Array.from(best.local.learning, positive), Array.from(best.local.fixed, positive)]);
      const beyond = learning.total / best.trace.total - 1;
      const where = beyond >= 0 ? "more" : "less";
      text += `, and ${percent(Math.abs(beyond))} ${where} than the best static gain, ${shortNumber(best.gain)}, which is known only in hindsight.`;
    }
    verdict.textContent = text;
    plots.gain.describe(text);
    contraction.textContent = learning.contraction.toFixed(4);
    meter.value = learning.contraction;
  }

  const controls = element(
    "div",
    { class: "controls" },
    group(
      "The controller",
      choice({ name: "rule", label: "Learning rule", choices: RULES, value: values.rule as Rule, changed: set("rule") }),
      slider({
        name: "gain", label: "First gain θ₀", low: RANGES.gain[0], high: RANGES.gain[1], value: values.gain, logarithmic: true,
        show: shortNumber, changed: set("gain"),
      }),
    ),
    group(
      "Nature",
      slider({
        name: "noise", label: "Noise σ", low: RANGES.noise[0], high: RANGES.noise[1], value: values.noise, logarithmic: true,
        show: shortNumber, changed: set("noise"),
      }),
      slider({
        name: "period", label: "a* jumps every", low: RANGES.period[0], high: RANGES.period[1], value: values.period,
        logarithmic: true, step: 1000, show: (value) => `${value / 1000}k steps`, changed: set("period"),
      }),
      buttons(
        button("New noise", () => {
          values.seed = Math.floor(Math.random() * 99_999);
          ask();
        }),
      ),
    ),
    gauge,
    takeAway(
      "paper_example",
      () => pythonScript(settings(), values.rule as Rule),
      () => tomlFile(settings(), values.rule as Rule),
      { name: "paper_mgaps", source: cSource, header: cHeader },
    ),
  );
  const heading = element(
    "div",
    { class: "heading" },
    element("h2", {}, "One gain, an unknown force, no reset"),
    about(
      "how-it-works/",
      "A controller u = −θx − φ(x)â holds x near zero for 200,000 steps, while noise pushes x and the unknown force φ(x)a* jumps from time to time.",
      "While it runs, the controller learns the force (its estimate is â) and improves its own gain θ by M-GAPS, the algorithm of the paper.",
      "Compare it with a controller that learns the force but keeps its first gain, and with the best constant gain, which nobody knows in advance.",
    ),
  );
  // On a phone, the gain stands above the sliders.
  const [first, ...others] = Object.values(plots).map((plot) => plot.element);
  place.append(layout(heading, controls, [verdict, first!], [element("div", { class: "plots" }, ...others)]));
  // The page is drawn first: on a slow machine, two runs of 200,000 steps would delay it. The address is written at once:
  // later, the reader may have asked for another panel.
  remember();
  let stopped = false;
  requestAnimationFrame(() => setTimeout(() => stopped || compute()));
  return () => {
    stopped = true;
    worker.terminate();
  };
}

/** Means of so many rows: the noise of single rows hides the curves. */
const COARSE = 10;
const every = (values: Float64Array, count: number) => values.filter((_, i) => i % count === 0);
const means = (values: Float64Array, count: number) =>
  Float64Array.from({ length: Math.floor(values.length / count) }, (_, i) =>
    values.subarray(i * count, (i + 1) * count).reduce((sum, value) => sum + value, 0) / count,
  );

const positive = (value: number): number | null => (value > 0 ? value : null);
const percent = (share: number): string => `${Number((100 * share).toPrecision(2))} %`;
