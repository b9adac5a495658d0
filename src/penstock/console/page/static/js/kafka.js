// Which Kafka a page shows: that of its address; without one it is that of --servers, or the only one.
// @ts-check
/** @import { GraphNode } from "../../types" */
import { html, withValue } from "./html.js";
import { href, setQuery, useRoute } from "./route.js";
import { useOverview } from "./live.js";

/** The Kafka of this page, all of them, whether one is chosen, and what a link to it has. */
export function useKafka() {
  const { query } = useRoute();
  const { kafkas, kafka } = useOverview();
  const own = query.kafka || kafka || "";
  return { kafka: own, kafkas, chosen: Boolean(own) || kafkas.length < 2, link: { kafka: query.kafka } };
}

/** The name of the Kafka in the head of a page; a choice if there are several. */
export function KafkaName() {
  const { kafka, kafkas } = useKafka();
  if (!kafka && !kafkas.length) return null;
  if (kafkas.length < 2 && (!kafka || kafkas.includes(kafka)))
    return html`<span class="quiet break">Kafka at ${kafkas[0]}</span>`;
  const known = kafkas.includes(kafka);
  return html`<label>Kafka <select value=${kafka} onChange=${withValue((chosen) => setQuery({ kafka: chosen, shown: "" }))}>
    ${!known && html`<option value=${kafka}>${kafka || "choose one"}</option>`}
    ${kafkas.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>`;
}

export const ChooseKafka = () =>
  html`<p class="quiet">Runs and options name several Kafkas, which may have topics of the same names: choose one above.</p>`;

/** @param {GraphNode} node */
export const isTopic = (node) => node.id.startsWith("topic:");

/**
 * The page of the node of a topic; null if the console does not read its Kafka.
 * @param {GraphNode} node
 */
export const topicPage = (node) =>
  node.kafka || !node.address ? href("topics", [node.name], { kafka: node.kafka }) : null;
