// Checks the generated dashboards against the types of a Grafana release, by
// default the one that package.json pins: the dashboard itself, and each panel's
// options and custom field configuration. A wrong name or value is an error with
// its place.
//
//   npm install && npm run check
//
// Only typescript and @grafana/schema are needed; --modules says in which
// folder they are installed, --boards where the dashboards are.
import {existsSync} from 'node:fs';
import {readdir, readFile} from 'node:fs/promises';
import {createRequire} from 'node:module';
import {dirname, join, resolve} from 'node:path';
import {fileURLToPath} from 'node:url';
import {parseArgs} from 'node:util';

const here = dirname(fileURLToPath(import.meta.url));
const {values: flags} = parseArgs({options: {modules: {type: 'string', default: here}, boards: {type: 'string', default: join(here, '..')}}});
const modules = resolve(flags.modules);
const ts = createRequire(join(modules, 'package.json'))('typescript');

// Releases before 12.4 export no single type: their files are named.
const old = './node_modules/@grafana/schema/dist/esm/raw/';
const isOld = existsSync(join(modules, old, 'dashboard/x/dashboard_types.gen.d.ts'));
const raw = isOld ? old : '@grafana/schema/dist/esm/raw/';
const {version} = JSON.parse(await readFile(join(modules, 'node_modules/@grafana/schema/package.json')));
// Defaults that the SDK writes and 11.0 does not know: it passes over them.
const younger = ['percentChangeColorMode', 'selectionMode'];
const panelOptions = (o) => version.startsWith('11.0.') ? Object.fromEntries(Object.entries(o).filter(([name]) => !younger.includes(name))) : o;
const kinds = {timeseries: 'TimeSeries', stat: 'Stat', heatmap: 'Heatmap', table: 'Table'};
const source = [
  `import type {Dashboard} from '${raw}dashboard/x/${isOld ? 'd' : 'D'}ashboard_types.gen';`,
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

for (const file of (await readdir(flags.boards)).filter((f) => f.endsWith('.json'))) {
  const {__inputs, __requires, ...board} = JSON.parse(await readFile(join(flags.boards, file)));
  // A data source adds properties of its own to an annotation; the types know
  // only those of Grafana's built-in one.
  const list = board.annotations.list.map(({target, titleFormat, textFormat, tagKeys, useValueForTime, ...common}) => common);
  expect(file, 'Dashboard', {...board, annotations: {list}});
  for (const p of board.panels) {
    if (p.type === 'row') continue;
    if (!kinds[p.type]) throw new Error(`${file}: ${p.title}: no types for a panel of type ${p.type}`);
    expect(`${file}: ${p.title}: options`, p.type + '.Options', panelOptions(p.options));
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
console.log(`${place.size} parts checked against ${version}, ${errors.length} errors`);
process.exitCode = errors.length ? 1 : 0;
