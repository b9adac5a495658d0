// The address of what is shown: `#/page/argument?name=value`. It holds the page, its filters and its time range, so a
// link or a reload shows the same.
// @ts-check
/** @import { Params, Part, Query } from "../../types" */
import { store, useStore } from "./store.js";

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * The page, its arguments and its query of a hash.
 * @param {string} hash
 * @returns {{ page: string, args: string[], query: Query }}
 */
export function parse(hash) {
  const text = hash.replace(/^#\/?/, "");
  const cut = text.indexOf("?");
  const path = cut < 0 ? text : text.slice(0, cut);
  const [page, ...args] = path.split("/").map(decoded);
  return {
    page: page || "overview",
    args,
    query: Object.fromEntries(new URLSearchParams(cut < 0 ? "" : text.slice(cut))),
  };
}

/**
 * The hash of a page; values of the query that are null, false or "" are left out.
 * @param {string} page
 * @param {Part[]} [args]
 * @param {Params} [query]
 */
export function href(page, args = [], query = {}) {
  const kept = Object.entries(query)
    .filter(([, value]) => value !== null && value !== undefined && value !== false && value !== "")
    .map(([name, value]) => [name, String(value)]);
  const path = [page, ...args].map(encodeURIComponent).join("/");
  return `#/${path}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
}

const route = store(parse(location.hash));
addEventListener("hashchange", () => route.set(parse(location.hash)));

export const useRoute = () => useStore(route);

/** @param {string} address */
export function go(address) {
  location.hash = address;
}

/**
 * Change values of the query; the page stays, and "back" leaves the page.
 * @param {Params} changes
 */
export function setQuery(changes) {
  const { page, args, query } = route.get();
  history.replaceState(null, "", href(page, args, { ...query, ...changes }));
  route.set(parse(location.hash));
}
