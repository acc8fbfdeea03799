// Draws deploy/chart/files/dashboard.json with the components of @grafana/ui and
// @grafana/data, which have no loader of dashboards. draw.sh bundles this file. The title
// of the document is "drawn" two seconds after the panels have their data, or the error.
import '@fontsource/inter/latin-400.css';
import '@fontsource/inter/latin-500.css';
import { createRoot } from 'react-dom/client';
import { firstValueFrom } from 'rxjs';
import {
  applyFieldOverrides, cacheFieldDisplayNames, createTheme, dateTime, displayNameOverrideProcessor, EventBusSrv, FieldType, getFieldDisplayValues,
  identityOverrideProcessor, standardFieldConfigEditorRegistry, standardTransformers, standardTransformersRegistry, toDataFrame,
  transformDataFrame, VizOrientation,
} from '@grafana/data';
import { BigValue, GlobalStyles, Icon, PanelChrome, PanelContextProvider, ThemeContext, TimeSeries, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';

const parameters = new URLSearchParams(location.search);
const theme = createTheme({ colors: { mode: parameters.get('theme') } });
const scrapeInterval = 3; // seconds, as in picture_test.go
const to = Math.floor(parameters.get('to') / scrapeInterval) * scrapeInterval; // Unix time
const from = to - parameters.get('seconds');
const timeRange = { from: dateTime(from * 1000), to: dateTime(to * 1000) };
timeRange.raw = timeRange;

// Grafana's size of a grid unit and of the space between panels, in pixels.
const unit = 30, gap = 8, columns = 24, width = 1084;

// What Grafana's panels add to a dashboard that does not set it.
const defaults = {
  timeseries: {
    color: { mode: 'palette-classic' },
    custom: { drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, showPoints: 'auto', pointSize: 5, axisPlacement: 'auto', scaleDistribution: { type: 'linear' }, stacking: { mode: 'none', group: 'A' } },
  },
  stat: { thresholds: { mode: 'absolute', steps: [{ value: -Infinity, color: 'green' }, { value: 80, color: 'red' }] }, color: { mode: 'thresholds' } },
  table: { custom: { align: 'auto', cellOptions: { type: 'auto' }, filterable: false } },
};

// The options of fields that the dashboard may set.
standardFieldConfigEditorRegistry.setInit(() => [
  ...['unit', 'min', 'max', 'decimals', 'links', 'color', 'thresholds', 'mappings', 'noValue'].map((id) => option(id, id)),
  { ...option('displayName', 'displayName'), process: displayNameOverrideProcessor },
  ...['hideFrom', 'axisSoftMax'].map((id) => ({ ...option(id, id), id: 'custom.' + id, isCustom: true })),
]);
standardTransformersRegistry.setInit(() => [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer]
  .map((transformation) => ({ id: transformation.id, name: transformation.name, transformation: () => transformation })));

function option(id, path) {
  return { id, path, name: id, process: identityOverrideProcessor, shouldApply: () => true };
}

async function prometheus(path, query) {
  const response = await fetch('/api/v1/' + path + '?' + new URLSearchParams(query));
  const { status, data, error } = await response.json();
  if (status !== 'success') {
    throw new Error(`${JSON.stringify(query)}: ${error}`);
  }
  return data;
}

// query returns the frames of a target, as Grafana's Prometheus data source does.
async function query(target, panel, variables) {
  const expr = target.expr.replaceAll('$__rate_interval', 4 * scrapeInterval + 's').replaceAll('$instance', variables.instance);
  if (/\$/.test(expr)) {
    throw new Error(`${panel.title}: unknown variable: ${expr}`);
  }
  const { result } = target.instant
    ? await prometheus('query', { query: expr, time: to })
    : await prometheus('query_range', { query: expr, start: from, end: to, step: scrapeInterval });
  const frames = target.format === 'table' ? [table(target, result)] : result.map((series) => graph(target, series));
  if (result.length === 0) {
    throw new Error(`${panel.title}: no data: ${expr}`);
  }
  return frames;
}

function graph(target, { metric, values }) {
  const name = target.legendFormat.replace(/{{\s*(.+?)\s*}}/g, (_, label) => metric[label] ?? '');
  return toDataFrame({ refId: target.refId, name, fields: [
    { name: 'Time', type: FieldType.time, values: values.map(([t]) => t * 1000) },
    { name: 'Value', type: FieldType.number, labels: metric, config: { displayNameFromDS: name }, values: values.map(([, v]) => Number(v)) },
  ] });
}

function table(target, result) {
  const labels = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))].sort();
  return toDataFrame({ refId: target.refId, fields: [
    { name: 'Time', type: FieldType.time, values: result.map(({ value }) => value[0] * 1000) },
    ...labels.map((label) => ({ name: label, type: FieldType.string, values: result.map(({ metric }) => metric[label] ?? '') })),
    { name: 'Value #' + target.refId, type: FieldType.number, values: result.map(({ value }) => Number(value[1])) },
  ] });
}

// load returns the frames of a panel, transformed and with its field options.
async function load(panel, variables) {
  const frames = (await Promise.all(panel.targets.map((target) => query(target, panel, variables)))).flat();
  const set = panel.fieldConfig.defaults, base = defaults[panel.type];
  const drawn = applyFieldOverrides({
    data: await firstValueFrom(transformDataFrame(panel.transformations ?? [], frames)),
    fieldConfig: { ...panel.fieldConfig, defaults: { ...base, ...set } },
    replaceVariables: (text) => text.replace(/\${(\w+)}/g, (all, name) => variables[name] ?? all),
    theme, timeZone: 'utc',
  });
  for (const field of drawn.flatMap((frame) => frame.fields)) {
    field.config.custom = { ...base.custom, ...field.config.custom };
  }
  cacheFieldDisplayNames(drawn);
  return drawn;
}

const visuals = {
  timeseries: ({ panel, frames, ...size }) => <TimeSeries {...size} frames={frames} timeRange={timeRange} timeZone="utc" legend={{ calcs: [], ...panel.options.legend }} />,
  stat: ({ panel, frames, ...size }) => <VizRepeater {...size} source={frames} renderCounter={0} orientation={VizOrientation.Auto}
    getValues={() => getFieldDisplayValues({ fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions, replaceVariables: (text) => text, theme, data: frames, timeZone: 'utc' })}
    renderValue={({ value, width, height, count }) => <BigValue {...panel.options} value={value.display} width={width} height={height} count={count} theme={theme} />} />,
  table: ({ panel, frames, ...size }) => <TableNG {...size} data={frames[0]} sortBy={panel.options.sortBy} fieldConfig={panel.fieldConfig} enableVirtualization={false} />,
};

function Place({ at, children }) {
  const column = (width + gap) / columns;
  return <div style={{ position: 'absolute', left: at.x * column, top: at.y * (unit + gap), width: at.w * column - gap, height: at.h * (unit + gap) - gap }}>{children}</div>;
}

function Panel({ panel, frames }) {
  const at = panel.gridPos;
  if (panel.type === 'row') {
    return <Place at={at}><div style={{ display: 'flex', alignItems: 'center', gap: 8, height: '100%', ...theme.typography.h6 }}><Icon name="angle-down" />{panel.title}</div></Place>;
  }
  const Visual = visuals[panel.type];
  return (
    <Place at={at}>
      <PanelChrome title={panel.title} description={panel.description} width={at.w * (width + gap) / columns - gap} height={at.h * (unit + gap) - gap}>
        {(width, height) => <Visual panel={panel} frames={frames} width={width} height={height} />}
      </PanelChrome>
    </Place>
  );
}

async function draw() {
  const dashboard = await (await fetch('/dashboard.json')).json();
  const instances = await prometheus('label/instance/values', { 'match[]': 'coredns_build_info' });
  const variables = { instance: instances.length > 1 ? `(${instances.join('|')})` : instances[0] };
  for (const v of dashboard.templating.list) {
    variables[v.name] ??= v.current?.value;
  }
  const panels = await Promise.all(dashboard.panels.map(async (panel) => ({ panel, frames: panel.type === 'row' ? [] : await load(panel, variables) })));
  const bottom = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  await Promise.all(['400', '500'].map((weight) => document.fonts.load(weight + ' 14px Inter')));
  createRoot(document.getElementById('root')).render(
    <ThemeContext.Provider value={theme}>
      <PanelContextProvider value={{ eventsScope: 'global', eventBus: new EventBusSrv() }}>
        <GlobalStyles />
        <div style={{ position: 'relative', width, height: bottom * (unit + gap) - gap, padding: 0 }}>
          {panels.map(({ panel, frames }) => <Panel key={panel.id} panel={panel} frames={frames} />)}
        </div>
      </PanelContextProvider>
    </ThemeContext.Provider>,
  );
  document.body.style.margin = gap + 'px';
}

draw().then(() => setTimeout(() => { document.title = 'drawn'; }, 2000), (error) => { document.title = 'failed: ' + error.message; });
