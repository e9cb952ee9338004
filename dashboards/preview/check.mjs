// Checks the generated dashboards against the types of the Grafana release that
// package.json pins: the dashboard itself, and each panel's options and custom
// field configuration. A wrong name or value is an error with its place.
//
//   npm install && npm run check
//
// Only typescript and @grafana/schema are needed; --modules says in which
// folder they are installed.
import {readdir, readFile} from 'node:fs/promises';
import {createRequire} from 'node:module';
import {dirname, join, resolve} from 'node:path';
import {fileURLToPath} from 'node:url';
import {parseArgs} from 'node:util';

const here = dirname(fileURLToPath(import.meta.url));
const {values: flags} = parseArgs({options: {modules: {type: 'string', default: here}}});
const modules = resolve(flags.modules);
const ts = createRequire(join(modules, 'package.json'))('typescript');

const raw = '@grafana/schema/dist/esm/raw/';
const kinds = {timeseries: 'TimeSeries', stat: 'Stat', heatmap: 'Heatmap', table: 'Table'};
const source = [
  `import type {Dashboard} from '${raw}dashboard/x/Dashboard_types.gen';`,
  ...Object.entries(kinds).map(([kind, name]) => `import type * as ${kind} from '${raw}composable/${kind}/panelcfg/x/${name}PanelCfg_types.gen';`),
  // JSON has strings and numbers where the types have enumerations.
  'type Plain<T> = T extends string ? `${T}`',
  '  : T extends number ? (number extends T ? number : `${T}` extends `${infer N extends number}` ? N : never)',
  '  : T extends object ? {[K in keyof T]: Plain<T[K]>} : T;',
];
const place = new Map(); // line of the source → what it is
function expect(what, type, value) {
  place.set(source.length, what);
  source.push(`export const v${source.length}: Plain<${type}> = ${JSON.stringify(value)};`);
}

for (const file of (await readdir(join(here, '..'))).filter((f) => f.endsWith('.json'))) {
  const board = JSON.parse(await readFile(join(here, '..', file)));
  // A data source adds properties of its own to an annotation; the types know
  // only those of Grafana's built-in one.
  const list = board.annotations.list.map(({target, titleFormat, textFormat, tagKeys, useValueForTime, ...common}) => common);
  expect(file, 'Dashboard', {...board, annotations: {list}});
  for (const p of board.panels) {
    if (p.type === 'row') continue;
    if (!kinds[p.type]) throw new Error(`${file}: ${p.title}: no types for a panel of type ${p.type}`);
    expect(`${file}: ${p.title}: options`, p.type + '.Options', p.options);
    if (p.fieldConfig.defaults.custom) expect(`${file}: ${p.title}: custom`, p.type + '.FieldConfig', p.fieldConfig.defaults.custom);
  }
}

const name = join(modules, 'dashboards.ts');
const options = {
  strict: true, noEmit: true, skipLibCheck: true, target: ts.ScriptTarget.ES2022, types: [],
  module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler,
};
const host = ts.createCompilerHost(options);
const {getSourceFile, fileExists} = host;
host.fileExists = (f) => f === name || fileExists.call(host, f);
host.getSourceFile = (f, ...rest) => f === name ? ts.createSourceFile(f, source.join('\n'), options.target) : getSourceFile.call(host, f, ...rest);
const errors = ts.getPreEmitDiagnostics(ts.createProgram([name], options, host));
for (const e of errors) {
  const line = e.file ? e.file.getLineAndCharacterOfPosition(e.start).line : -1;
  console.error(`${place.get(line) ?? e.file?.fileName}: ${ts.flattenDiagnosticMessageText(e.messageText, ' ').slice(0, 400)}`);
}
console.log(`${place.size} parts checked, ${errors.length} errors`);
process.exitCode = errors.length ? 1 : 0;
