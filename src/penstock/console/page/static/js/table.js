// A table that sorts by its columns. A row has a key; a column has a title, a cell and, to sort by it, a value.
// @ts-check
/** @import { Column, Order } from "../../types" */
/** @import { ComponentChildren } from "preact" */
import { useState } from "preact/hooks";
import { html } from "./html.js";

/** @type {(left: unknown, right: unknown) => number} */
function compared(left, right) {
  if ((left ?? null) === null || (right ?? null) === null)
    return Number((left ?? null) === null) - Number((right ?? null) === null);
  return typeof left === "number" && typeof right === "number"
    ? left - right
    : String(left).localeCompare(String(right), "en", { numeric: true });
}

/**
 * Rows in the order of a column; unknown values are last in both directions.
 * @template Row
 * @param {Row[]} rows
 * @param {Column<Row> | undefined} column
 * @param {boolean | undefined} down
 */
function sorted(rows, column, down) {
  const valueOf = column?.value;
  if (!valueOf) return rows;
  const value = (/** @type {Row} */ row) => valueOf(row) ?? null;
  return [...rows].sort((left, right) => {
    const order = compared(value(left), value(right));
    const unknown = value(left) === null || value(right) === null;
    return down && !unknown ? -order : order;
  });
}

/**
 * @template Row
 * @param {{ column: Column<Row>, order: Order, onSort: (column: Column<Row>, down: boolean | null | undefined) => void }} props
 */
function Head({ column, order, onSort }) {
  const down = order.title === column.title ? order.down : null;
  const aria = down === null ? undefined : down ? "descending" : "ascending";
  if (!column.value) return html`<th scope="col" class=${column.number && "number"}>${column.title}</th>`;
  return html`<th scope="col" class=${column.number && "number"} aria-sort=${aria}>
    <button type="button" class="sort" onClick=${() => onSort(column, down)}>${column.title}${down !== null && html`<span aria-hidden="true">${down ? "↓" : "↑"}</span>`}</button>
  </th>`;
}

/**
 * `caption` names the table for screen readers, `first` is the order at the start.
 * @template Row
 * @param {object} props
 * @param {Column<Row>[]} props.columns
 * @param {Row[]} props.rows
 * @param {(row: Row) => string | number} props.keyOf
 * @param {string} props.caption
 * @param {ComponentChildren} [props.empty]
 * @param {Order} [props.first]
 * @param {(row: Row) => string} [props.rowClass]
 */
export function Table({ columns, rows, keyOf, caption, empty = "Nothing here.", first = {}, rowClass }) {
  const [order, setOrder] = useState(first);
  const shown = sorted(
    rows,
    columns.find((column) => column.title === order.title),
    order.down,
  );
  // Without rows there is nothing to name or to sort, and in a wide table the sentence would be cut off.
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  const onSort = (/** @type {Column<Row>} */ column, /** @type {boolean | null | undefined} */ down) =>
    setOrder({ title: column.title, down: (down ?? null) === null ? Boolean(column.number) : !down });
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`Table: ${caption}`}>
    <table>
      <caption class="unseen">${caption}</caption>
      <thead><tr>${columns.map((column) => html`<${Head} key=${column.title} column=${column} order=${order} onSort=${onSort} />`)}</tr></thead>
      <tbody>
        ${shown.map((row) => html`<tr key=${keyOf(row)} class=${rowClass?.(row)}>${columns.map((column) => cell(column, row))}</tr>`)}
      </tbody>
    </table>
  </div>`;
}

/**
 * @template Row
 * @param {Column<Row>} column
 * @param {Row} row
 */
function cell(column, row) {
  const kind = column.number ? "number" : undefined;
  return column.head
    ? html`<th scope="row" class=${kind}>${column.cell(row)}</th>`
    : html`<td class=${kind}>${column.cell(row)}</td>`;
}
