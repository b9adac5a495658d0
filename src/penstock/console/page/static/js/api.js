// Requests to the console's server. A failure is an ApiError with what, where and what to do next.
// @ts-check
/** @import { AnswerOf, Params, Part } from "../../types" */
import { parsed } from "./exact_json.js";
import { token } from "./token.js";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

const WAIT = 20_000; // milliseconds until a request is given up

export class ApiError extends Error {
  /**
   * @param {string} what
   * @param {{ where?: string, next?: string, status?: number }} [more]
   */
  constructor(what, { where = "", next = "", status = 0 } = {}) {
    super(what);
    this.where = where;
    this.next = next;
    this.status = status;
  }
}

/**
 * What was thrown, as an error with words.
 * @param {unknown} error
 */
export function asApiError(error) {
  if (error instanceof ApiError) return error;
  return new ApiError(error instanceof Error ? error.message : String(error));
}

/**
 * The address of an API path, whose parts are encoded; parameters without a value are left out.
 * @param {readonly Part[]} parts
 * @param {Params} [params]
 */
export function address(parts, params = {}) {
  const kept = Object.entries(params)
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [name, String(value)]);
  const path = ["api", ...parts].map(encodeURIComponent).join("/");
  return kept.length ? `${path}?${new URLSearchParams(kept)}` : path;
}

/**
 * The answer as the console's own server gives it, whose types are those of types.d.ts.
 * @template A
 * @param {string} url
 * @param {RequestInit} options
 * @returns {Promise<A>}
 */
async function answered(url, options) {
  let answer;
  try {
    answer = await fetch(url, { cache: "no-store", credentials: "same-origin", ...options });
  } catch (error) {
    if (options.signal?.reason === "changed") throw error;
    const why = options.signal?.aborted ? `no answer within ${WAIT / 1000} s` : "no connection";
    throw new ApiError(`The console's server does not answer: ${why}`, { next: "check that `penstock console` runs" });
  }
  const body = await answer
    .text()
    .then(parsed)
    .catch(() => null);
  if (answer.ok && body !== null) return /** @type {A} */ (body);
  const problem = /** @type {{ error?: string, where?: string, next?: string } | null} */ (body);
  throw new ApiError(problem?.error ?? `The server answered ${answer.status} ${answer.statusText}`, {
    where: problem?.where,
    next: problem?.next,
    status: answer.status,
  });
}

/**
 * @template {readonly Part[]} const P
 * @param {P} parts
 * @param {Params} [params]
 * @param {AbortSignal} [signal]
 * @returns {Promise<AnswerOf<P>>}
 */
export function get(parts, params, signal) {
  const limit = AbortSignal.timeout(WAIT);
  return answered(address(parts, params), { signal: signal ? AbortSignal.any([signal, limit]) : limit });
}

/**
 * @template {readonly Part[]} const P
 * @param {P} parts
 * @param {object} [body]
 * @param {Params} [params]
 * @returns {Promise<AnswerOf<P>>}
 */
export function post(parts, body = {}, params = {}) {
  const headers = { "Content-Type": "application/json", "X-Penstock-Token": token() };
  return answered(address(parts, params), {
    method: "POST",
    headers,
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(60_000),
  });
}

/**
 * The answer of an API path: {data, error, loading, reload}. It is asked for again every `every` milliseconds while the
 * page is visible; the last good answer stays while there is an error. `parts` null asks for nothing.
 * @template {readonly Part[]} const P
 * @param {P | false | null} parts
 * @param {Params} [params]
 * @param {{ every?: number }} [options]
 */
export function useGet(parts, params, { every = 0 } = {}) {
  const key = parts && address(parts, params);
  /** @typedef {{ key: string, data?: AnswerOf<P>, error: ApiError | null }} Answer */
  const [answer, setAnswer] = useState(/** @type {Answer | null} */ (null));
  const [round, setRound] = useState(0);
  const asked = useRef(0);
  useEffect(() => {
    if (!parts || !key) return undefined;
    const stop = new AbortController();
    const mine = ++asked.current;
    let timer = 0;
    const again = () => {
      if (every) timer = setTimeout(() => (document.hidden ? again() : ask()), every);
    };
    const ask = async () => {
      try {
        const data = await get(parts, params, stop.signal);
        if (mine === asked.current) setAnswer({ key, data, error: null });
      } catch (error) {
        if (stop.signal.aborted) return;
        setAnswer((before) => ({ key, data: before?.key === key ? before.data : undefined, error: asApiError(error) }));
      }
      if (!stop.signal.aborted) again();
    };
    ask();
    return () => {
      stop.abort("changed");
      clearTimeout(timer);
    };
  }, [key, every, round]);
  const current = answer?.key === key ? answer : null;
  const reload = useCallback(() => setRound((before) => before + 1), []);
  return {
    data: current?.data,
    error: current?.error ?? null,
    loading: Boolean(key) && !current?.data && !current?.error,
    reload,
  };
}
