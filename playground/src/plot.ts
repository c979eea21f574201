/** A plot of some series over one axis; it follows the width of its place and the colours of the page. */
import uPlot from "uplot";
import { element } from "./controls";

export interface Series {
  label: string;
  /** The name of a CSS variable with the colour. */
  colour: string;
  dashed?: boolean;
  width?: number;
}

export interface PlotOptions {
  title: string;
  /** The unit or meaning of the horizontal axis. */
  along: string;
  series: Series[];
  logarithmic?: boolean;
  height?: number;
  range?: [number | null, number | null];
  format?: (value: number) => string;
}

export const shortNumber = (value: number): string => {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
  return Number(value.toPrecision(3)).toString();
};

const steps = (value: number): string => (Math.abs(value) >= 1000 ? `${Number((value / 1000).toPrecision(4))}k` : `${value}`);

/** A grid of all logarithmic steps would hide the curves where an axis spans many powers of ten. */
const powersOfTen: uPlot.Axis.Filter = (_, ticks) => {
  const most = Math.max(...ticks) / Math.min(...ticks);
  return most < 100 ? ticks : ticks.map((tick) => (Number.isInteger(Number(Math.log10(tick).toFixed(9))) ? tick : null));
};

export class Plot {
  readonly element: HTMLElement;
  #plot: uPlot | null = null;
  #data: uPlot.AlignedData = [[]];
  #options: PlotOptions;
  #place: HTMLElement;

  constructor(options: PlotOptions) {
    this.#options = options;
    this.#place = element("div", { class: "plot-place" });
    const names = options.series.map(({ label, colour, dashed }) =>
      element("span", { class: dashed ? "key dashed" : "key", style: `--key: var(${colour})` }, label),
    );
    const caption = element("figcaption", {}, element("b", {}, options.title), ...names);
    this.element = element("figure", { class: "plot", role: "img", "aria-label": options.title }, caption, this.#place);
    new ResizeObserver(() => this.#resize()).observe(this.#place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#make());
  }

  /** Show rows: the horizontal axis, then one array for each series; `null` leaves a gap. */
  show(data: (ArrayLike<number> | (number | null)[])[]): void {
    this.#data = data as uPlot.AlignedData;
    if (this.#plot === null) this.#make();
    else this.#plot.setData(this.#data);
  }

  /** Describe the last values in words, for screen readers. */
  describe(text: string): void {
    this.element.setAttribute("aria-label", `${this.#options.title}: ${text}`);
  }

  #resize(): void {
    const width = this.#place.clientWidth;
    if (width > 0 && this.#plot !== null) this.#plot.setSize({ width, height: this.#options.height ?? 200 });
    else if (width > 0 && this.#data[0].length) this.#make();
  }

  #make(): void {
    const width = this.#place.clientWidth;
    if (width === 0 || !this.#data[0].length) return;
    this.#plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    const axis: uPlot.Axis = {
      stroke: colour("--muted"),
      grid: { stroke: colour("--grid"), width: 1 },
      ticks: { stroke: colour("--grid"), width: 1 },
      font: "12px system-ui, sans-serif",
    };
    const { options: { along, series, logarithmic, height = 200, range, format = shortNumber } } = { options: this.#options };
    this.#plot = new uPlot(
      {
        width,
        height,
        legend: { show: false },
        cursor: { y: false, points: { size: 5 } },
        scales: {
          x: { time: false },
          y: { distr: logarithmic ? 3 : 1, ...(range ? { range: (_, low, high) => [range[0] ?? low, range[1] ?? high] } : {}) },
        },
        axes: [
          { ...axis, values: (_, ticks) => ticks.map(steps), label: along, labelSize: 18, labelFont: "12px system-ui, sans-serif", size: 34 },
          {
            ...axis,
            values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))),
            size: 54,
            ...(logarithmic ? { grid: { ...axis.grid, filter: powersOfTen }, ticks: { ...axis.ticks, filter: powersOfTen } } : {}),
          },
        ],
        series: [
          {},
          ...series.map(({ label, colour: name, dashed, width: line }) => ({
            label,
            stroke: colour(name),
            width: line ?? 2,
            ...(dashed ? { dash: [6, 4] } : {}),
            points: { show: false },
          })),
        ],
      },
      this.#data,
      this.#place,
    );
  }
}
