// Types of the page: what the API answers, and what several modules share. A field that may be missing says so.
import type { ComponentChildren } from "preact";

/** A number; null or undefined if it is not known. */
export type Measured = number | null | undefined;
export type Counts = Record<string, number>;
/** The query of an address. */
export type Query = Record<string, string | undefined>;
/** Parameters of the API and of addresses: those without a value are left out. */
export type Params = Record<string, string | number | boolean | null | undefined>;

export interface Delay {
  p50?: number;
  p95?: number;
  p99?: number;
  /** Why no delay is known. */
  unknown?: string;
}
export interface Source {
  name: string;
  node?: string;
  bad_records?: Counts;
  lag_records?: number;
  lag_seconds?: number;
  retention_left_seconds?: number;
  rows_total?: number;
}
export interface Sink {
  name: string;
  node?: string;
  delay?: Delay;
  failures?: Counts;
  dead_letters?: Counts;
  rows_total?: number;
  bytes_total?: number;
  retries_total?: number;
}
export interface OperatorState {
  operator: string;
  rows?: number;
  memory_bytes?: number;
  disk_bytes?: number;
  late_rows_total?: number;
}
export interface Lookup {
  name: string;
  rows_total?: number;
  hits_total?: number;
  wait_seconds_total?: number;
}
export interface Batch {
  at: string;
  seconds?: number;
  rows?: number;
  lag_records?: number;
  lag_seconds?: number;
  delay_p99?: number;
  phases?: Counts;
}
export interface StreamQuery {
  name: string;
  state: string;
  pipeline?: string;
  node?: string;
  last_commit?: string;
  watermark?: string;
  waits_for?: string;
  starts?: Counts;
  sources?: Source[];
  sinks?: Sink[];
  states?: OperatorState[];
  lookups?: Lookup[];
  target_seconds?: number;
  batch?: number;
  rows_total?: number;
  rows_per_second?: number;
  /** Only of one pipeline, not of the overview. */
  history?: Batch[];
}
export interface GraphNode {
  id: string;
  kind: string;
  name: string;
  system?: string;
  address?: string | null;
  /** Of a topic: the name of its Kafka, null if the console does not read it. */
  kafka?: string | null;
}
export interface GraphEdge {
  source: string;
  target: string;
  rate?: number;
}
export interface Graph {
  nodes: GraphNode[];
  edges: GraphEdge[];
}
export interface RunError {
  what: string;
  at?: string;
  query?: string;
  where?: string;
  next?: string;
  trace?: string;
}
export interface ConnectTask {
  id: number;
  state: string;
  worker?: string;
  trace?: string;
  records_total?: number;
  dead_letters_total?: number;
  mostly_bad?: boolean;
}
export interface Run {
  id: string;
  name: string;
  kind: string;
  state: string;
  url: string | null;
  reachable: boolean;
  problem: string;
  now?: string;
  command?: string;
  pid?: number;
  waits_for?: string;
  jvm?: { used_bytes?: number; max_bytes?: number };
  queries?: StreamQuery[];
  errors?: RunError[];
  graph?: Graph;
  connectors?: { name: string; state?: string; tasks?: ConnectTask[] }[];
}
export interface Problem {
  severity: string;
  what: string;
  where: string;
  next: string;
  run: string;
  query: string | null;
  cluster?: number | null;
}
export interface Overview {
  now: string;
  version: string;
  read_only: boolean;
  messages: boolean;
  history: boolean;
  kafkas: string[];
  kafka: string | null;
  targets: (string | { url: string })[];
  runs: Run[];
  graph: Graph;
  problems: Problem[];
}

/** The last one has no name, and says how many of all topics are listed. */
export interface Topic {
  name: string | null;
  partitions?: number;
  records?: number;
  rate?: number | null;
  writers?: string[];
  readers?: string[];
  internal?: boolean;
  listed?: number;
  topics?: number;
}
export interface Message {
  partition: number;
  offset: number;
  timestamp: string | null;
  key: string | null;
  value: string | null;
  key_format?: string;
  value_format?: string;
  headers?: [string, string | null][];
  size: number;
  truncated?: boolean;
  /** Of a dead letter: where the record came from. */
  origin?: { topic?: string; partition?: number; offset?: number };
}
export interface MessagePage {
  records: Message[];
  more: boolean;
  newer: string;
  older: string;
  skipped_batches?: number;
  searched?: number;
}
/** The last one has no topic, and says how many of all topics were looked at. */
export interface DeadLetterTopic {
  topic: string | null;
  records?: number;
  reasons?: Counts;
  looked_at?: number;
  topics?: number;
}
export interface Reason {
  reason: string;
  count: number;
  first?: string;
  last?: string;
}
export interface DeadLetters {
  topic: string;
  reasons: Reason[];
  records: Message[];
  more: boolean;
  looked_at_all?: boolean;
}
/** Which dead letters are sent again. */
export interface Letters {
  letters?: number[][];
  reason?: string;
  all?: boolean;
  from?: string;
  until?: string;
}
export interface Sent {
  sent: number;
  failed: { partition: number; offset: number; why: string }[];
  left: number;
  next: Letters | null;
  error: string | null;
}
export interface Connector {
  cluster: number;
  url: string;
  name: string;
  state: string;
  type?: string;
  worker?: string;
  trace?: string;
  tasks?: ConnectTask[];
  letters?: string | null;
  kafka?: string | null;
  error?: string;
  problem?: string;
  config?: Record<string, string>;
  offsets?: unknown;
}
export interface Acted {
  action: string;
  done: boolean;
  waited_seconds: number;
  connector: Connector;
}
export interface KeptState {
  run: string;
  name: string;
  operator?: string;
  folder?: string;
  batch?: number;
  committed?: string;
  age_seconds?: number;
}
export interface StateRows {
  name: string;
  batch?: number;
  committed?: string;
  rows: Record<string, unknown>[];
  more?: boolean;
}
/** A server of `penstock ingest`: its numbers stand beside what it is. */
export interface IngestServer {
  run: string;
  url: string;
  state: string;
  reachable: boolean;
  problem: string;
  [number: string]: unknown;
}
export interface History {
  /** Pairs of seconds and a value, by the name of the series. */
  series: Record<string, [number, number][]>;
}

export type Part = string | number;
/** The answer of a path of the API. */
export type AnswerOf<P> = P extends readonly ["overview"]
  ? Overview
  : P extends readonly ["pipelines", Part]
    ? Run
    : P extends readonly ["history"]
      ? History
      : P extends readonly ["topics"]
        ? Topic[]
        : P extends readonly ["topics", Part, "records"]
          ? MessagePage
          : P extends readonly ["dead-letters"]
            ? DeadLetterTopic[]
            : P extends readonly ["dead-letters", Part]
              ? DeadLetters
              : P extends readonly ["dead-letters", Part, "send"]
                ? Sent
                : P extends readonly ["connectors"]
                  ? Connector[]
                  : P extends readonly ["connectors", Part, Part]
                    ? Connector
                    : P extends readonly ["connectors", Part, Part, Part]
                      ? Acted
                      : P extends readonly ["state"]
                        ? KeptState[]
                        : P extends readonly ["state", Part]
                          ? StateRows
                          : P extends readonly ["ingest"]
                            ? IngestServer[]
                            : never;

/** A value that components follow. */
export interface Store<T> {
  get: () => T;
  set: (next: T) => void;
  follow: (follower: (value: T) => void) => () => void;
}

/** A query of a run, with its state as the page shows it. */
export interface QueryOfRun {
  run: Run;
  query: StreamQuery;
  state: string;
}
/** What is known of a node of the graph. */
export interface Facts {
  node: GraphNode;
  rate: number | null;
  state: string | null;
  run: Run | null;
  query: StreamQuery | null;
  lagSeconds?: number | null;
  lagRecords?: number | null;
  delay?: number | null;
  deadLetters?: number | null;
  rows?: number | null;
  /** The name of a state in the list of states. */
  listed?: string | null;
}
export interface Point {
  x: number;
  y: number;
}
export interface Box extends Point {
  id: string;
}
export interface EdgeLine {
  source: string;
  target: string;
  points: Point[];
}
export interface Layout {
  boxes: Box[];
  lines: EdgeLine[];
  width: number;
  height: number;
}

/** A column of a table: a cell and, to sort by it, a value. */
export interface Column<Row> {
  title: string;
  cell: (row: Row) => ComponentChildren;
  value?: (row: Row) => string | number | null | undefined;
  number?: boolean;
  /** Whether the column names the row. */
  head?: boolean;
}
/** The order of a table. */
export interface Order {
  title?: string;
  down?: boolean;
}
export type Format = (value: Measured) => string;
export interface Series {
  label: string;
  /** The name of a colour's variable. */
  tint: string;
  dash?: number[];
}
/** Times in seconds, then the values of each series. */
export type Columns = [number[], ...(number | null)[][]];

declare global {
  /** What browsers have since 2025; before, a number's text is not known. */
  interface JSON {
    rawJSON?: (text: string) => unknown;
    parse(text: string, reviver: (name: string, value: unknown, context?: { source?: string }) => unknown): unknown;
  }
}
