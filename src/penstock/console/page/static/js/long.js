// A query over hours and days, from the Prometheus that the console was given.
// @ts-check
/** @import { Columns, Format, History, Series, StreamQuery } from "../../types" */
import { useMemo } from "preact/hooks";
import { html } from "./html.js";
import { useGet } from "./api.js";
import { duration, rate } from "./format.js";
import { Chart } from "./chart.js";
import { Failure, Loading } from "./notices.js";

/** @type {Record<string, string>} */
export const LONG_RANGES = { "1h": "1 h", "6h": "6 h", "1d": "1 d", "7d": "7 d" };
const PERIOD = 30_000; // milliseconds

/**
 * Several series of pairs [seconds, value] on common times.
 * @param {[number, number][][]} series
 * @returns {Columns}
 */
function aligned(series) {
  const times = [...new Set(series.flatMap((pairs) => pairs.map(([at]) => at)))].sort((one, other) => one - other);
  return [
    times,
    ...series.map((pairs) => {
      const values = new Map(pairs);
      return times.map((at) => values.get(at) ?? null);
    }),
  ];
}

/**
 * @param {{ title: string, series: History["series"], of: (Series & { name: string })[], format: Format }} props
 */
function Lines({ title, series, of, format }) {
  const data = useMemo(() => aligned(of.map(({ name }) => series[name] ?? [])), [series]);
  const newest = data[1]?.findLast((value) => value !== null);
  const sentence = (newest ?? null) === null ? "not measured" : `now ${format(newest)}`;
  return html`<${Chart} title=${title} sentence=${sentence} data=${data} series=${of} format=${format} sync="long" />`;
}

/** @param {{ query: StreamQuery, range: string }} props */
export function LongCharts({ query, range }) {
  const { data, error, loading, reload } = useGet(
    ["history"],
    { pipeline: query.pipeline, query: query.name, range },
    { every: PERIOD },
  );
  const series = data?.series;
  return html`<section class="card" aria-labelledby="batches">
    <div class="heading"><h2 id="batches">Over time</h2><span class="quiet">from Prometheus</span></div>
    <${Failure} error=${error} onRetry=${reload} />
    ${loading && html`<${Loading} what="the last hours" />`}
    ${
      series &&
      html`<div class="charts">
      <${Lines} title="Lag" series=${series} of=${[{ name: "lag_seconds", label: "lag", tint: "--series-1" }]} format=${duration} />
      <${Lines} title="Delay" series=${series} of=${[
        { name: "delay_p99", label: "P99", tint: "--series-1" },
        { name: "delay_p95", label: "P95", tint: "--series-2" },
        { name: "delay_p50", label: "P50", tint: "--series-3" },
      ]} format=${duration} />
      <${Lines} title="Rows a second" series=${series} of=${[{ name: "rows_per_second", label: "rows/s", tint: "--series-1" }]} format=${rate} />
      <${Lines} title="Time of a batch" series=${series} of=${[{ name: "batch_seconds", label: "batch", tint: "--series-1" }]} format=${duration} />
    </div>`
    }
  </section>`;
}
