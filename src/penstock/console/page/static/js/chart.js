// Lines and stacked bars over time by uPlot. A canvas says nothing to a screen reader, so a sentence stands beside each.
// @ts-check
/** @import { Columns, Format, Series } from "../../types" */
import uPlot from "uplot";
import { useEffect, useRef } from "preact/hooks";
import { html } from "./html.js";
import { duration, time } from "./format.js";
import { colour, repaint } from "./theme.js";
import { useStore } from "./store.js";

const HEIGHT = 176;
const SECONDS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
  21_600, 86_400, 604_800,
];

const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800];

/**
 * What is drawn: `bars` draws stacked bars, whose data are sums, the largest first.
 * @typedef {{ series: Series[], format: Format, bars: boolean, sync: string, onPoint: (text: string) => void }} Drawn
 */

/**
 * Sums of the values up to each series, for a stack drawn from the top down.
 * @param {(number | null)[][]} columns
 */
export function stacked(columns) {
  /** @type {number[][]} */
  const sums = [];
  for (const column of columns) sums.push(column.map((value, at) => (value ?? 0) + (sums.at(-1)?.[at] ?? 0)));
  return sums;
}

/**
 * @param {Series} series
 * @param {Format} format
 * @param {boolean} bars
 * @returns {uPlot.Series}
 */
function seriesOptions({ label, tint, dash }, format, bars) {
  const paint = colour(tint);
  return {
    label,
    stroke: paint,
    width: bars ? 0 : 2,
    dash,
    fill: bars ? paint : undefined,
    paths: bars ? uPlot.paths.bars?.({ size: [0.9, 24, 1], gap: 0 }) : undefined,
    points: { show: false },
    value: (_, value) => format(value),
    spanGaps: false,
  };
}

/**
 * Times at an axis: with the date if it shows more than a day, with seconds if it shows minutes.
 * @param {number[]} ticks
 */
function clock(ticks) {
  const span = (ticks.at(-1) ?? 0) - ticks[0];
  return ticks.map((tick) => {
    const date = new Date(tick * 1000);
    const text = date.toTimeString().slice(0, span < 1200 ? 8 : 5);
    return span > 86_400 ? `${date.getMonth() + 1}/${date.getDate()} ${text}` : text;
  });
}

/**
 * What the series say where the pointer is: "08:14:25: lag 2 min 39 s"; of a stack, each part by itself.
 * @param {uPlot} plot
 * @param {Pick<Drawn, "series" | "format" | "bars">} drawn
 */
function readout(plot, { series, format, bars }) {
  const at = plot.cursor.idx;
  if (at === null || at === undefined) return "";
  const value = (/** @type {number} */ column) => plot.data[column]?.[at] ?? null;
  const parts = series.map(({ label }, index) => {
    const below = bars && index + 1 < series.length ? (value(index + 2) ?? 0) : 0;
    const own = value(index + 1);
    return own === null ? null : `${label} ${format(own - below)}`;
  });
  return `${time(plot.data[0][at] * 1000)}: ${parts.filter(Boolean).join(", ") || "not measured"}`;
}

/**
 * @param {number} width
 * @param {Drawn} drawn
 * @returns {uPlot.Options}
 */
function options(width, { series, format, bars, sync, onPoint }) {
  const axis = {
    stroke: colour("--muted"),
    grid: { stroke: colour("--grid"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  return {
    width,
    height: HEIGHT,
    cursor: { sync: { key: sync }, y: false, drag: { x: false, y: false } },
    legend: { show: false },
    padding: [8, 8, 0, 0],
    scales: { y: { range: (_, low, high) => [0, high && high > 0 ? high * 1.08 : 1] } },
    axes: [
      { ...axis, size: 28, space: 80, incrs: TIMES, values: (_, ticks) => clock(ticks) },
      {
        ...axis,
        size: 72,
        space: 36,
        incrs: format === duration ? SECONDS : undefined,
        values: (_, ticks) => ticks.map(format),
      },
    ],
    series: [{}, ...series.map((one) => seriesOptions(one, format, bars))],
    hooks: { setCursor: [(plot) => onPoint(readout(plot, { series, format, bars }))] },
  };
}

/**
 * `sentence` is what a screen reader reads. Where nothing was measured, `unknown` says why.
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.sentence
 * @param {Columns} props.data
 * @param {Series[]} props.series
 * @param {string} [props.unknown]
 * @param {Format} props.format
 * @param {boolean} [props.bars]
 * @param {string} [props.sync]
 */
export function Chart({ title, sentence, data, series, unknown = "Nothing was measured in this time.", ...drawn }) {
  const pointed = useRef(/** @type {HTMLElement | null} */ (null));
  const known = data.slice(1).some((column) => column.some((value) => value !== null));
  const onPoint = (/** @type {string} */ text) => {
    if (pointed.current) pointed.current.textContent = text;
  };
  return html`<figure class="chart">
    <figcaption><strong>${title}</strong> <span class="quiet">${sentence}</span>
      ${series.length > 1 && html`<ul class="legend">${series.map((one) => html`<li key=${one.label}><span class="swatch" style=${{ background: `var(${one.tint})` }}></span>${one.label}</li>`)}</ul>`}
    </figcaption>
    ${known ? html`<${Plot} data=${data} series=${series} onPoint=${onPoint} ...${drawn} />` : html`<p class="plot empty">${unknown}</p>`}
    <p class="pointed" ref=${pointed} aria-hidden="true"></p>
  </figure>`;
}

/** @param {Omit<Drawn, "bars" | "sync"> & { data: Columns, bars?: boolean, sync?: string }} props */
function Plot({ data, series, format, onPoint, bars = false, sync = "time" }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {uPlot | null} */ (null));
  const colours = useStore(repaint);
  const shape = series.map((one) => one.label).join("|");
  useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    const width = () => Math.max(160, element.clientWidth);
    const drawn = new uPlot(options(width(), { series, format, bars, sync, onPoint }), data, element);
    const watcher = new ResizeObserver(() => drawn.setSize({ width: width(), height: HEIGHT }));
    watcher.observe(element);
    plot.current = drawn;
    return () => {
      watcher.disconnect();
      drawn.destroy();
    };
  }, [shape, colours]);
  useEffect(() => plot.current?.setData(data), [data]);
  return html`<div class="plot" ref=${place} aria-hidden="true"></div>`;
}

/**
 * A small line without axes; the number beside it says the newest value.
 * @param {{ values: (number | null)[], label: string }} props
 */
export function Sparkline({ values, label }) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return html`<span class="quiet">–</span>`;
  const top = Math.max(...known) || 1;
  const step = 96 / Math.max(values.length - 1, 1);
  let path = "";
  values.forEach((value, at) => {
    if (value === null) return;
    const pen = at && values[at - 1] !== null ? "L" : "M";
    path += `${pen}${(at * step).toFixed(1)} ${(22 - (value / top) * 20).toFixed(1)}`;
  });
  return html`<svg class="spark" viewBox="0 0 96 24" role="img" aria-label=${label}><path d=${path} /></svg>`;
}
