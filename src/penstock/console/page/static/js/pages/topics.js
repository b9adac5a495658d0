// All topics: size, rate, who writes and who reads.
// @ts-check
/** @import { Column, Params, Topic } from "../../../types" */
import { useEffect } from "preact/hooks";
import { html, withChecked, withValue } from "../html.js";
import { useGet } from "../api.js";
import { count, many, rate } from "../format.js";
import { ChooseKafka, KafkaName, useKafka } from "../kafka.js";
import { href, setQuery, useRoute } from "../route.js";
import { Failure, Loading } from "../notices.js";
import { breakable } from "../marks.js";
import { Table } from "../table.js";

/** @param {string[] | undefined} names */
const users = (names) => names?.join(", ") || "–";

/** @typedef {Topic & { name: string }} NamedTopic */
/** @type {(link: Params) => Column<NamedTopic>[]} */
const columns = (link) => [
  {
    title: "Topic",
    head: true,
    value: (topic) => topic.name,
    cell: (topic) =>
      html`<a href=${href("topics", [topic.name], link)}>${breakable(topic.name)}</a>${topic.internal && html` <span class="tag">internal</span>`}`,
  },
  { title: "Records", number: true, value: (topic) => topic.records, cell: (topic) => count(topic.records) },
  { title: "Records/s", number: true, value: (topic) => topic.rate, cell: (topic) => rate(topic.rate) },
  { title: "Partitions", number: true, value: (topic) => topic.partitions, cell: (topic) => count(topic.partitions) },
  { title: "Written by", value: (topic) => users(topic.writers), cell: (topic) => users(topic.writers) },
  { title: "Read by", value: (topic) => users(topic.readers), cell: (topic) => users(topic.readers) },
];

const EMPTY = html`No topics yet: a pipeline that writes to Kafka makes its topics, and so does <code>penstock topics create</code>.`;

export function Topics() {
  const { query } = useRoute();
  const { kafka, chosen, link } = useKafka();
  const { data, error, loading, reload } = useGet(chosen && ["topics"], { kafka }, { every: 5_000 });
  useEffect(() => {
    document.title = "Topics · Penstock";
  }, []);
  const rest = data?.find((one) => one.name === null);
  const topics = data?.flatMap((one) => (one.name === null ? [] : [{ ...one, name: one.name }]));
  const low = (query.q ?? "").toLowerCase();
  const shown = (topics ?? []).filter(
    (topic) => topic.name.toLowerCase().includes(low) && (query.internal || !topic.internal),
  );
  return html`
    <div class="page-head"><h1>Topics</h1><${KafkaName} />${topics && html`<span class="quiet">${many(shown.length, "topic")}</span>`}</div>
    <div class="filters">
      <label class="search"><span class="unseen">Filter by name</span><input type="search" placeholder="Filter by name" value=${query.q ?? ""} onInput=${withValue((q) => setQuery({ q }))} /></label>
      <label><input type="checkbox" checked=${Boolean(query.internal)} onChange=${withChecked((chosen) => setQuery({ internal: chosen ? "1" : "" }))} /> internal topics, too</label>
    </div>
    ${!chosen && html`<${ChooseKafka} />`}
    <${Failure} error=${error} onRetry=${reload} />
    ${loading && html`<${Loading} what="topics" />`}
    ${rest && html`<p class="quiet">${count(rest.listed)} of ${many(rest.topics, "topic")} listed: the first by their names.</p>`}
    ${topics && html`<section class="card"><${Table} caption="Topics" columns=${columns(link)} rows=${shown} keyOf=${(/** @type {NamedTopic} */ topic) => topic.name} first=${{ title: "Topic", down: false }} empty=${topics.some((topic) => query.internal || !topic.internal) ? "No topic fits the filter." : EMPTY} /></section>`}
  `;
}
