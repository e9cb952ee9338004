// One dashboard, laid out on Grafana's grid and drawn by Grafana's components.
// What the components leave to the application is done here: asking Prometheus,
// naming fields, applying field options. The heatmap, for which the library has
// no component, is our own canvas.
import {
  createDataFrame, createTheme, dateTime, EventBusSrv, FieldType, getDisplayProcessor, getFieldDisplayName,
  standardTransformers, standardTransformersRegistry, transformDataFrame, ThemeContext,
} from '@grafana/data';
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import {BigValue, GlobalStyles, PanelChrome, PanelContextProvider, PortalContainer, TimeSeries} from '@grafana/ui';
import {TableNG} from '@grafana/ui/unstable';
import {useEffect, useRef, useState} from 'react';
import {createRoot} from 'react-dom/client';
import {lastValueFrom} from 'rxjs';

const params = new URLSearchParams(location.search);
const theme = createTheme({colors: {mode: params.get('theme')}});
const to = Number(params.get('now'));
const from = to - Number(params.get('range'));
const timeRange = {from: dateTime(from * 1000), to: dateTime(to * 1000), raw: {from: 'now-' + params.get('range') + 's', to: 'now'}};
const scrape = Number(params.get('scrape'));

standardTransformersRegistry.setInit(() => [...new Set(Object.values(standardTransformers))].map((t) => ({
  id: t.id, aliasIds: [], name: t.name, transformation: async () => t, editor: () => null, description: t.description, imageDark: '', imageLight: '',
})));

// Queries, as Grafana sends them: variables filled in, a step that suits the
// width, a rate interval of at least four scrapes.
const variables = {};
function fill(expr, step) {
  for (const [name, value] of Object.entries(variables)) expr = expr.replaceAll('$' + name, value);
  const rate = Math.max(step + scrape, 4 * scrape);
  return expr.replaceAll('$__rate_interval', rate + 's').replaceAll('$__range', to - from + 's');
}

async function api(path, query) {
  const answer = await fetch('/api/v1/' + path, {method: 'POST', body: new URLSearchParams(query)});
  const body = await answer.json();
  if (body.status !== 'success') throw new Error(`${path} ${query.query}: ${body.error}`);
  return body.data.result ?? body.data;
}

const legend = (format, labels) => format.replace(/{{\s*([^}]+?)\s*}}/g, (_, l) => labels[l] ?? '').replace(/\s+/g, ' ').trim();

async function frames(panel, width) {
  const step = Math.max(scrape, Math.ceil((to - from) / (width / 4)));
  const all = [];
  for (const target of panel.targets) {
    const query = fill(target.expr, step);
    if (target.instant && target.format === 'table') {
      all.push(tableFrame(target.refId, await api('query', {query, time: to})));
      continue;
    }
    if (target.instant) {
      for (const series of await api('query', {query, time: to})) {
        all.push(createDataFrame({refId: target.refId, fields: [
          {name: 'Time', type: FieldType.time, values: [to * 1000], config: {}},
          {name: 'Value', type: FieldType.number, values: [Number(series.value[1])], labels: series.metric,
            config: {displayNameFromDS: legend(target.legendFormat, series.metric)}},
        ]}));
      }
      continue;
    }
    for (const series of await api('query_range', {query, start: from, end: to, step})) {
      const byTime = new Map(series.values.map(([t, v]) => [t, Number(v)]));
      const times = [], values = [];
      for (let t = from; t <= to; t += step) {
        times.push(t * 1000);
        const v = byTime.get(t);
        values.push(v === undefined || !Number.isFinite(v) ? null : v);
      }
      if (values.every((v) => v === null)) continue;
      all.push(createDataFrame({refId: target.refId, fields: [
        {name: 'Time', type: FieldType.time, values: times, config: {}},
        {name: 'Value', type: FieldType.number, values, labels: series.metric,
          config: {displayNameFromDS: target.legendFormat ? legend(target.legendFormat, series.metric) : undefined}},
      ]}));
    }
  }
  return all;
}

// What the Prometheus data source returns for the format "table".
function tableFrame(refId, result) {
  const labels = [...new Set(result.flatMap((s) => Object.keys(s.metric)))].sort();
  if (!result.length) return createDataFrame({refId, fields: []});
  return createDataFrame({refId, fields: [
    {name: 'Time', type: FieldType.time, values: result.map((s) => s.value[0] * 1000), config: {}},
    ...labels.map((l) => ({name: l, type: FieldType.string, values: result.map((s) => s.metric[l] ?? ''), config: {}})),
    {name: 'Value #' + refId, type: FieldType.number, values: result.map((s) => Number(s.value[1])), config: {}},
  ]});
}

// Field options: the panel's defaults, then the overrides by name.
function configure(frame, fieldConfig) {
  frame.fields.forEach((field, seriesIndex) => {
    const {custom, ...defaults} = structuredClone(fieldConfig.defaults);
    field.config = {...defaults, ...field.config, custom: {...custom}};
    for (const override of fieldConfig.overrides) {
      if (override.matcher.id !== 'byName' || override.matcher.options !== getFieldDisplayName(field, frame)) continue;
      for (const {id, value} of override.properties) {
        const path = id.split('.');
        let at = field.config;
        for (const part of path.slice(0, -1)) at = at[part] ??= {};
        at[path.at(-1)] = value;
      }
    }
    const numbers = field.type === FieldType.number ? field.values.filter((v) => v !== null) : [];
    const [min, max] = [Math.min(...numbers), Math.max(...numbers)];
    field.state = {...field.state, seriesIndex, range: {min, max, delta: max - min}};
    field.display = getDisplayProcessor({field, theme, timeZone: 'utc'});
    field.getLinks = () => [];
  });
  return frame;
}

function Panel({panel, width, height}) {
  const [data, setData] = useState(null);
  useEffect(() => {
    (async () => {
      let got = await frames(panel, width);
      if (panel.transformations?.length) got = await lastValueFrom(transformDataFrame(panel.transformations, got, {interpolate: (v) => v}));
      // The frames of a graph are joined: colours go by series, not by frame.
      got.forEach((f, i) => {
        configure(f, panel.fieldConfig);
        if (panel.type !== 'table') f.fields.forEach((field) => { field.state.seriesIndex = i; });
      });
      const exemplars = panel.type === 'heatmap' ? await api('query_exemplars', {query: fill(panel.targets[0].expr, scrape), start: from, end: to}) : [];
      setData({frames: got, exemplars});
    })().catch((err) => setData({frames: [], exemplars: [], error: err})).finally(() => window.waiting--);
  }, []);
  if (data?.error) throw data.error;
  const full = data?.frames.some((f) => f.length > 0);
  if (data && !full) window.empty.push(panel.title);
  return (
    <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
      {(w, h) => !data ? null : full
        ? <Body panel={panel} data={data} width={w} height={h} />
        : <div style={{display: 'flex', height: h, alignItems: 'center', justifyContent: 'center', textAlign: 'center', color: theme.colors.text.secondary}}>{panel.fieldConfig.defaults.noValue}</div>}
    </PanelChrome>
  );
}

function Body({panel, data, width, height}) {
  switch (panel.type) {
    case 'timeseries':
      return <TimeSeries frames={data.frames} timeRange={timeRange} timeZone="utc" width={width} height={height}
        legend={panel.options.legend} options={panel.options} />;
    case 'stat': {
      const fields = data.frames.map((f) => f.fields[1]);
      const each = width / fields.length;
      return <div style={{display: 'flex'}}>{fields.map((field, i) => {
        const value = field.display(field.values.findLast((v) => v !== null));
        if (fields.length > 1) value.title = getFieldDisplayName(field, data.frames[i]);
        return <BigValue key={i} theme={theme} width={each} height={height} value={value} textMode={panel.options.textMode}
          colorMode={panel.options.colorMode} graphMode={panel.options.graphMode} justifyMode={panel.options.justifyMode} />;
      })}</div>;
    }
    case 'table':
      return <TableNG data={data.frames[0]} width={width} height={height} cellHeight={panel.options.cellHeight}
        initialSortBy={panel.options.sortBy} fieldConfig={panel.fieldConfig} structureRev={1} disableSanitizeHtml={false}
        getActions={() => []} transparent={false} />;
    case 'heatmap':
      return <Heatmap data={data} width={width} height={height} unit={panel.fieldConfig.defaults.unit} />;
    default:
      throw new Error('no component for ' + panel.type);
  }
}

// Buckets are cumulative: a cell is the difference to the bucket below.
function Heatmap({data, width, height, unit}) {
  const canvas = useRef(null);
  useEffect(() => {
    const rows = data.frames.map((f) => ({le: Number(f.fields[1].labels.le.replace('+Inf', 'Infinity')), values: f.fields[1].values}))
      .sort((a, b) => a.le - b.le);
    const cells = rows.map((r, i) => r.values.map((v, x) => v === null ? null : Math.max(0, v - (rows[i - 1]?.values[x] ?? 0))));
    const filled = cells.map((r) => r.some((v) => v > 0));
    const lo = Math.max(0, filled.indexOf(true) - 1), hi = Math.min(rows.length, filled.lastIndexOf(true) + 2);
    const most = Math.max(...cells.flat());
    const c = canvas.current.getContext('2d');
    const left = 62, bottom = 22, w = width - left, h = height - bottom, ch = h / (hi - lo), cw = w / cells[0].length;
    const format = (v) => { const d = getDisplayProcessor({field: {type: FieldType.number, config: {unit, decimals: v < 0.01 ? 1 : 0}}, theme})(v); return d.text + (d.suffix ?? ''); };
    c.font = '12px Inter'; c.textBaseline = 'middle';
    for (let y = lo; y < hi; y++) {
      const top = h - (y - lo + 1) * ch;
      cells[y].forEach((v, x) => {
        if (!v) return;
        const share = Math.sqrt(v / most);
        c.fillStyle = `hsl(${240 - 240 * share} 80% ${45 + 15 * share}%)`;
        c.fillRect(left + x * cw, top, Math.max(1, cw - 1), Math.max(1, ch - 1));
      });
      c.fillStyle = theme.colors.text.secondary; c.textAlign = 'right';
      if (top > 6 && (ch > 12 || (y - lo) % 2 === 0)) c.fillText(Number.isFinite(rows[y].le) ? format(rows[y].le) : '∞', left - 6, top);
    }
    c.textAlign = 'center';
    const tick = [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].find((t) => (to - from) / t <= 8) ?? 172800;
    for (let t = Math.ceil(from / tick) * tick; t <= to; t += tick) {
      c.fillText(new Date(t * 1000).toISOString().slice(11, tick < 60 ? 19 : 16), left + w * (t - from) / (to - from), h + bottom / 2);
    }
    c.fillStyle = 'rgb(255 0 255 / 0.8)';
    for (const e of data.exemplars.flatMap((s) => s.exemplars)) {
      let y = rows.findIndex((r) => Number(e.value) <= r.le);
      if (y < lo || y >= hi) continue;
      const x = left + w * (e.timestamp - from) / (to - from);
      c.beginPath(); c.arc(x, h - (y - lo + 0.5) * ch, 3, 0, 7); c.fill();
    }
  }, []);
  return <canvas ref={canvas} width={width} height={height} />;
}

const margin = 8, cell = 30;
function Dashboard({board}) {
  const width = document.documentElement.clientWidth - 2 * margin;
  const column = (width + margin) / 24;
  const bottom = Math.max(...board.panels.map((p) => p.gridPos.y + p.gridPos.h));
  return (
    <div style={{background: theme.colors.background.canvas, padding: margin}}>
      <div style={{display: 'flex', flexWrap: 'wrap', gap: 8, alignItems: 'center', marginBottom: 8}}>
        <h4 style={{margin: '0 8px 0 0'}}>{board.title}</h4>
        {board.templating.list.filter((v) => v.hide !== 2).map((v) => (
          <span key={v.name} style={{border: `1px solid ${theme.colors.border.medium}`, borderRadius: 2, fontSize: 12, background: theme.colors.background.primary}}>
            <span style={{padding: '3px 6px', color: theme.colors.text.secondary}}>{v.label}</span>
            <span style={{padding: '3px 8px 3px 2px'}}>{v.type === 'datasource' ? 'Prometheus' : v.name === 'consumer_group' && params.get('group') || 'All'} ▾</span>
          </span>
        ))}
      </div>
      <div style={{position: 'relative', height: bottom * (cell + margin)}}>
        {board.panels.map((p) => {
          const g = p.gridPos, w = g.w * column - margin, h = g.h * (cell + margin) - margin;
          return (
            <div key={p.id} style={{position: 'absolute', left: g.x * column, top: g.y * (cell + margin), width: w, height: h}}>
              {p.type === 'row' ? <h5 style={{margin: 0, lineHeight: h + 'px'}}>⌄ {p.title}</h5> : <Panel panel={p} width={w} height={h} />}
            </div>
          );
        })}
      </div>
      <PortalContainer />
    </div>
  );
}

// Axes are sized by measuring text: the font must be there first.
await Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 12px Inter`)));
const board = await (await fetch(params.get('dashboard'))).json();
for (const v of board.templating.list) {
  variables[v.name] = v.name === 'consumer_group' && params.get('group') || v.allValue;
  const chosen = /^query_result\((.+)\)$/s.exec(v.query);
  if (!chosen) continue;
  const names = (await api('query', {query: fill(chosen[1], 60), time: to})).map((s) => s.metric.consumer_group);
  variables[v.name] = [...new Set(names)].map((n) => n.replace(/[.*+?^${}()|[\]\\]/g, '\\\\$&')).join('|');
}
window.empty = [];
window.waiting = board.panels.filter((p) => p.type !== 'row').length;
createRoot(document.getElementById('root')).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <PanelContextProvider value={{eventsScope: 'preview', eventBus: new EventBusSrv()}}>
      <Dashboard board={board} />
    </PanelContextProvider>
  </ThemeContext.Provider>,
);
const poll = setInterval(() => {
  if (window.waiting > 0) return;
  clearInterval(poll);
  // uPlot draws in the next frames.
  setTimeout(() => { window.drawn = {empty: window.empty}; }, 1500);
}, 50);
