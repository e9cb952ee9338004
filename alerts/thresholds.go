package alerts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// Thresholds are the values the rules are made from: the single source for the
// rules, the runbooks' figures and the dashboards' threshold lines. A field's
// key names it in --set and in a values file.
type Thresholds struct {
	ScrapeInterval model.Duration `key:"scrape_interval" default:"1m" doc:"longest scrape interval the rules must live with; every rate window covers it four times"`
	Bridge         model.Duration `key:"bridge" default:"10m" doc:"how long the last good sample stands in for failed scrapes"`

	RetentionRatioWarning  float64        `key:"retention_ratio_warning" default:"1.1" unit:"ratio" doc:"oldest marker age over topic retention below which the margin is too small"`
	RetentionRatioCritical float64        `key:"retention_ratio_critical" default:"1" unit:"ratio" doc:"oldest marker age over topic retention below which a replay is applied twice"`
	RetentionWindow        model.Duration `key:"retention_window" default:"15d" doc:"how long it is remembered of a table that is gone that it was pruned"`
	RetentionSlack         model.Duration `key:"retention_slack" default:"15m" doc:"movement of the oldest marker's own time in a day that is not a deletion: scrape jitter and bridged scrapes; above bridge"`
	RetentionFor           model.Duration `key:"retention_for" default:"10m" doc:"how long a retention fault must last"`
	ExposureMemory         model.Duration `key:"exposure_memory" default:"7d" doc:"how long an exposure that nobody can look at any more stays a page"`
	UnverifiedFor          model.Duration `key:"unverified_for" default:"1h" doc:"how long it must be unknown whether records have lost their markers"`
	PageKeepFiring         model.Duration `key:"page_keep_firing" default:"30m" doc:"how long a page stays after what it was given for is no longer seen: longer than an exporter's restart"`

	MassDeletedShare  float64        `key:"mass_deleted_share" default:"0.5" unit:"ratio" doc:"share of a group's markers gone within mass_deleted_window"`
	MassDeletedMin    float64        `key:"mass_deleted_min" default:"10000" unit:"markers" doc:"smallest group for which a mass deletion is reported"`
	MassDeletedWindow model.Duration `key:"mass_deleted_window" default:"1h" doc:"window of a mass deletion"`
	MassDeletedFor    model.Duration `key:"mass_deleted_for" default:"2m" doc:"how long a mass deletion must show"`

	PruneCycle              model.Duration `key:"prune_cycle" default:"1d" doc:"period of the pruner (a daily job: 1d); counts are smoothed over it"`
	GrowthShare             float64        `key:"growth_share" default:"0.2" unit:"ratio" doc:"growth of the marker count over what was inserted, past full retention"`
	GrowthUnconfiguredRatio float64        `key:"growth_unconfigured_ratio" default:"2" unit:"ratio" doc:"age over topic retention taken as full retention while neither a configured retention nor a prune is known"`
	GrowthFor               model.Duration `key:"growth_for" default:"1h" doc:"how long the count must outgrow pruning"`
	LimitHorizon            model.Duration `key:"limit_horizon" default:"7d" doc:"how far ahead the row count is predicted"`
	LimitFor                model.Duration `key:"limit_for" default:"1h" doc:"how long the prediction must pass the limit"`

	DuplicateRatioMin     float64        `key:"duplicate_ratio_min" default:"0.0001" unit:"ratio" doc:"duplicates over handled events below which deduplication looks broken"`
	DuplicateRatioMax     float64        `key:"duplicate_ratio_max" default:"0.005" unit:"ratio" doc:"duplicates over handled events above the redelivery baseline"`
	DuplicateWindow       model.Duration `key:"duplicate_window" default:"30m" doc:"window of the high duplicate ratio and of its two causes"`
	DuplicateMinEvents    float64        `key:"duplicate_min_events" default:"1000" unit:"events" doc:"events in duplicate_window needed to judge a high ratio"`
	DuplicateCauseFor     model.Duration `key:"duplicate_cause_for" default:"5m" doc:"how long a rebalance loop or reused ids must show"`
	DuplicateLowWindow    model.Duration `key:"duplicate_low_window" default:"1d" doc:"window of the low duplicate ratio"`
	DuplicateLowMinEvents float64        `key:"duplicate_low_min_events" default:"1000000" unit:"events" doc:"events in duplicate_low_window needed to judge a low ratio"`
	DuplicateLowFor       model.Duration `key:"duplicate_low_for" default:"1h" doc:"how long a low duplicate ratio must last"`
	RebalanceLoopCount    float64        `key:"rebalance_loop_count" default:"5" unit:"rebalances" doc:"rebalances or restarts in duplicate_window that make a loop"`

	LatencyP99           float64        `key:"latency_p99" default:"0.2" unit:"seconds" doc:"handling time objective; a bucket bound of event_handle_duration_seconds"`
	LatencyWindow        model.Duration `key:"latency_window" default:"5m" doc:"window over which the p99 is taken"`
	LatencyMinEvents     float64        `key:"latency_min_events" default:"100" unit:"events" doc:"events in a window needed to judge latency"`
	LatencyFor           model.Duration `key:"latency_for" default:"10m" doc:"how long the p99 must be above its objective"`
	LatencyObjective     float64        `key:"latency_objective" default:"0.99" unit:"ratio" doc:"share of events to be handled within latency_p99"`
	BurnFast             float64        `key:"burn_fast" default:"14.4" unit:"ratio" doc:"burn rate over burn_fast_long and burn_fast_short (2 % of a 30-day budget in an hour)"`
	BurnFastLong         model.Duration `key:"burn_fast_long" default:"1h" doc:"long window of the fast burn"`
	BurnFastShort        model.Duration `key:"burn_fast_short" default:"5m" doc:"short window of the fast burn"`
	BurnSlow             float64        `key:"burn_slow" default:"6" unit:"ratio" doc:"burn rate over burn_slow_long and burn_slow_short (5 % of a 30-day budget in six hours)"`
	BurnSlowLong         model.Duration `key:"burn_slow_long" default:"6h" doc:"long window of the slow burn"`
	BurnSlowShort        model.Duration `key:"burn_slow_short" default:"30m" doc:"short window of the slow burn"`
	BurnFor              model.Duration `key:"burn_for" default:"2m" doc:"how long the error budget must burn"`
	CommitLagFactor      float64        `key:"commit_lag_factor" default:"2" unit:"ratio" doc:"offset-commit lag over the hour before that counts as widening"`
	CommitLagWindow      model.Duration `key:"commit_lag_window" default:"15m" doc:"window over which the offset-commit lag is averaged"`
	CommitLagBaseline    model.Duration `key:"commit_lag_baseline" default:"1h" doc:"time before that window that it is compared with"`
	CommitLagWideningFor model.Duration `key:"commit_lag_widening_for" default:"10m" doc:"how long the offset-commit lag must widen"`
	CommitLagWarning     float64        `key:"commit_lag_warning" default:"1" unit:"seconds" doc:"offset-commit lag below which widening does not matter"`
	CommitLagCritical    float64        `key:"commit_lag_critical" default:"30" unit:"seconds" doc:"offset-commit lag that is a fault by itself"`
	CommitLagFor         model.Duration `key:"commit_lag_for" default:"2m" doc:"how long the offset-commit lag must be critical"`
	LagMin               float64        `key:"lag_min" default:"1000" unit:"records" doc:"consumer lag below which growth does not matter"`
	LagGrowthWindow      model.Duration `key:"lag_growth_window" default:"30m" doc:"how long the lag must have grown, in three steps"`
	LagGrowthFactor      float64        `key:"lag_growth_factor" default:"1.05" unit:"ratio" doc:"growth over lag_growth_window that is more than noise"`
	LagGrowthMin         float64        `key:"lag_growth_min" default:"1000" unit:"records" doc:"growth over two thirds of lag_growth_window that matters, however many records wait already"`
	PlannedIdle          model.Duration `key:"planned_idle" default:"14h" doc:"how long a group without members and without targets is taken for scaled to zero; its lag is then no alert"`
	QuietFrom            float64        `key:"quiet_from" default:"0" unit:"hour (UTC)" doc:"first hour of the day in which a growing lag and a standing group are no alert; the same as quiet_until: never"`
	QuietUntil           float64        `key:"quiet_until" default:"0" unit:"hour (UTC)" doc:"hour of the day in which they are an alert again"`
	StalledWindow        model.Duration `key:"stalled_window" default:"10m" doc:"how long events must wait and nothing be handled; restarts are counted over two of it"`
	StalledLag           float64        `key:"stalled_lag" default:"1" unit:"records" doc:"records waiting in one partition that may be a transaction's marker; 0 where producers use no transactions"`
	StalledRestarts      float64        `key:"stalled_restarts" default:"2" unit:"restarts" doc:"restarts of one consumer in two stalled_window that a deployment makes"`
	StalledFor           model.Duration `key:"stalled_for" default:"2m" doc:"how long a consumer must be seen to stall"`
	OffsetsMissingFor    model.Duration `key:"offsets_missing_for" default:"10m" doc:"how long committed offsets must be missing"`
	ExpiringSoonShare    float64        `key:"expiring_soon_share" default:"0.5" unit:"ratio" doc:"age of what waits over the topic's retention: a warning"`
	ExpiringShare        float64        `key:"expiring_share" default:"0.9" unit:"ratio" doc:"age of what waits over the topic's retention: a page"`
	ExpiringFor          model.Duration `key:"expiring_for" default:"10m" doc:"how long what waits must be that old"`
	LagFor               model.Duration `key:"lag_for" default:"5m" doc:"how long the lag must grow, or not recover"`
	LagKeepFiring        model.Duration `key:"lag_keep_firing" default:"10m" doc:"how long growing lag is reported after it stopped growing"`
	LagRestartFrom       model.Duration `key:"lag_restart_from" default:"20m" doc:"time after a consumer's start from which its lag must be recovering"`
	LagRestartUntil      model.Duration `key:"lag_restart_until" default:"2h" doc:"time after a consumer's start until which its lag is held against the start"`
	LagRestartFactor     float64        `key:"lag_restart_factor" default:"3" unit:"ratio" doc:"lag over its level before the start that is far above it"`
	LagRestartShrink     float64        `key:"lag_restart_shrink" default:"0.95" unit:"ratio" doc:"lag over its level ten minutes before above which it is not shrinking"`
	LagShrinkWindow      model.Duration `key:"lag_shrink_window" default:"10m" doc:"two such windows in a row tell whether the lag shrinks"`
	LagRestartBaseline   model.Duration `key:"lag_restart_baseline" default:"1h" doc:"time before the start over which the lag is averaged"`
	OutboxPendingAge     float64        `key:"outbox_pending_age" default:"600" unit:"seconds" doc:"age of the oldest undelivered outbox intent"`
	OutboxFor            model.Duration `key:"outbox_for" default:"1m" doc:"how long an intent must be that old"`
	RetryRatio           float64        `key:"retry_ratio" default:"0.05" unit:"ratio" doc:"retries over handled events"`
	RetryMin             float64        `key:"retry_min" default:"5" unit:"retries" doc:"retries in event_window below which nothing is said"`
	RetryFor             model.Duration `key:"retry_for" default:"10m" doc:"how long retries must be that many"`
	EventWindow          model.Duration `key:"event_window" default:"15m" doc:"window in which retries, lost and dead-lettered events and processed events are counted"`
	TableEmptyFor        model.Duration `key:"table_empty_for" default:"10m" doc:"how long events must be processed without a marker"`
	UnfinishedMax        float64        `key:"unfinished_max" default:"0" unit:"rows" doc:"rows without a time that are always being handled"`
	UnfinishedFor        model.Duration `key:"unfinished_for" default:"1h" doc:"how long entries must be unfinished"`
	LostWindow           model.Duration `key:"lost_window" default:"1h" doc:"how long a lost or dead-lettered event is reported"`
	CounterMemory        model.Duration `key:"counter_memory" default:"3d" doc:"how far before lost_window the last value of a counter is looked for: longer than any gap in its scrapes"`
	ExporterDownFor      model.Duration `key:"exporter_down_for" default:"10m" doc:"how long an exporter, a target or a collector must be failing"`
	StaleWindow          model.Duration `key:"stale_window" default:"15m" doc:"window in which every scrape must find a collector failing or stale: three times the longest scrape interval; or each of three scrapes in a third of it"`
	ClockSkew            model.Duration `key:"clock_skew" default:"1m" doc:"how far an exporter's clock may be off from Prometheus'"`
	StaleIntervals       float64        `key:"stale_intervals" default:"3" unit:"intervals" doc:"poll intervals without a success after which a collector is stale"`
	StaleFor             model.Duration `key:"stale_for" default:"5m" doc:"how long a collector must be stale"`
	ExporterRecent       model.Duration `key:"exporter_recent" default:"30d" doc:"how long a cluster's exporter that is gone is reported as down"`
	ExporterMemory       model.Duration `key:"exporter_memory" default:"7d" doc:"how long a target that served the exporter is remembered"`
	SloAppliedOnce       float64        `key:"slo_applied_once" default:"0.9999" unit:"ratio" doc:"objective: share of events that are neither lost nor applied apart from their marker"`
	SloReplayable        float64        `key:"slo_replayable" default:"0.999" unit:"ratio" doc:"objective: share of the time in which a group can be replayed without applying anything twice"`
	SloWatched           float64        `key:"slo_watched" default:"0.999" unit:"ratio" doc:"objective: share of the exporter's collectors, over time, that succeed"`
	DivergenceFor        model.Duration `key:"divergence_for" default:"5m" doc:"how long markers and effects must diverge"`
	ConsumerAbsentFor    model.Duration `key:"consumer_absent_for" default:"30m" doc:"how long a group with markers may show no consumer metrics"`
}

// A Value describes one threshold for a person: what `oncewatch rules --set`
// takes and the README lists.
type Value struct {
	Key     string
	Default string
	Unit    string // "ratio", "seconds", "events", …; "duration" is written as Prometheus does: 90s, 15d
	Doc     string
}

// Values lists every threshold in the order of [Thresholds].
func Values() []Value {
	t := reflect.TypeFor[Thresholds]()
	values := make([]Value, t.NumField())
	for i := range values {
		tag := t.Field(i).Tag
		values[i] = Value{Key: tag.Get("key"), Default: tag.Get("default"), Unit: tag.Get("unit"), Doc: tag.Get("doc")}
		if t.Field(i).Type == reflect.TypeFor[model.Duration]() {
			values[i].Unit = "duration"
		}
	}
	return values
}

// Defaults returns the thresholds of the rules as they are shipped.
func Defaults() Thresholds {
	var t Thresholds
	for _, v := range Values() {
		if err := t.set(v.Key, v.Default); err != nil {
			panic(err) // a default that does not parse is a fault of this file; the tests read every one
		}
	}
	return t
}

// set parses value into the threshold named key.
func (t *Thresholds) set(key, value string) error {
	v := reflect.ValueOf(t).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("key") != key {
			continue
		}
		switch field := v.Field(i).Addr().Interface().(type) {
		case *model.Duration:
			d, err := model.ParseDuration(value)
			if err != nil || d <= 0 {
				return fmt.Errorf("%s=%s: want a duration above zero such as 90s, 30m or 15d", key, value)
			}
			*field = d
		case *float64:
			f, err := strconv.ParseFloat(value, 64)
			if err != nil || math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
				return fmt.Errorf("%s=%s: want a number of at least 0 (%s)", key, value, v.Type().Field(i).Tag.Get("unit"))
			}
			*field = f
		}
		return nil
	}
	return fmt.Errorf("unknown threshold %q: %s", key, suggest(key))
}

// suggest names the known keys that share a word with key, or all of them.
func suggest(key string) string {
	var all, near []string
	for _, v := range Values() {
		all = append(all, v.Key)
		for word := range strings.SplitSeq(key, "_") {
			if len(word) > 2 && strings.Contains(v.Key, word) {
				near = append(near, v.Key)
				break
			}
		}
	}
	if len(near) > 0 {
		return "did you mean " + strings.Join(near, ", ") + "?"
	}
	return "known are " + strings.Join(all, ", ")
}

// Load returns the defaults with the values of file (YAML, key: value; may be
// empty) and then of set applied over them.
func Load(file string, set map[string]string) (Thresholds, error) {
	t := Defaults()
	var errs []error
	if file != "" {
		errs = append(errs, t.load(file))
	}
	for _, key := range sortedKeys(set) {
		if err := t.set(key, set[key]); err != nil {
			errs = append(errs, fmt.Errorf("--set: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Thresholds{}, err
	}
	return t, t.validate()
}

func (t *Thresholds) load(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--values: %w", err)
	}
	var doc yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	if err := documents.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("--values: %s: %w", file, err)
	}
	var second yaml.Node
	if err := documents.Decode(&second); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s:%d: a second document begins here, and would not be read", file, second.Line)
	}
	if len(doc.Content) == 0 { // an empty file changes nothing
		return nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: want a mapping of thresholds, one `key: value` a line", file, root.Line)
	}
	var errs []error
	seen := map[string]int{}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		switch {
		case seen[key.Value] > 0:
			errs = append(errs, fmt.Errorf("%s:%d: %s is already set on line %d", file, key.Line, key.Value, seen[key.Value]))
		case value.Kind != yaml.ScalarNode:
			errs = append(errs, fmt.Errorf("%s:%d: %s: want one value", file, key.Line, key.Value))
		default:
			if err := t.set(key.Value, value.Value); err != nil {
				errs = append(errs, fmt.Errorf("%s:%d: %w", file, key.Line, err))
			}
		}
		seen[key.Value] = key.Line
	}
	return errors.Join(errs...)
}

// validate refuses combinations with which a rule could never fire, or always.
func (t Thresholds) validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	for name, window := range map[string]model.Duration{
		"latency_window": t.LatencyWindow, "stalled_window": t.StalledWindow, "burn_fast_short": t.BurnFastShort, "burn_slow_short": t.BurnSlowShort,
		"burn_fast_long": t.BurnFastLong, "burn_slow_long": t.BurnSlowLong, "event_window": t.EventWindow,
		"a third of duplicate_window": t.DuplicateWindow / 3, "duplicate_low_window": t.DuplicateLowWindow,
	} {
		need(window >= 4*t.ScrapeInterval, "%s=%s: below four times scrape_interval (%s), a rate over it misses samples", name, window, t.ScrapeInterval)
	}
	need(t.RetentionSlack > t.Bridge, "retention_slack=%s: must be above bridge (%s), or a bridged scrape looks like a deletion", t.RetentionSlack, t.Bridge)
	need(t.RetentionRatioCritical <= t.RetentionRatioWarning, "retention_ratio_critical=%v: above retention_ratio_warning (%v)", t.RetentionRatioCritical, t.RetentionRatioWarning)
	need(t.Bridge >= 2*t.ScrapeInterval, "bridge=%s: below two times scrape_interval (%s) it bridges nothing, and one failed scrape starts every alert anew", t.Bridge, t.ScrapeInterval)
	need(t.LagRestartUntil-t.LagRestartFrom > t.LagFor, "lag_restart_until=%s: must be above lag_restart_from (%s) by more than lag_for (%s)", t.LagRestartUntil, t.LagRestartFrom, t.LagFor)
	need(t.DuplicateRatioMax < 1, "duplicate_ratio_max=%v: must be below 1", t.DuplicateRatioMax)
	need(t.GrowthShare < 1, "growth_share=%v: must be below 1", t.GrowthShare)
	need(t.ExporterMemory > t.ExporterDownFor, "exporter_memory=%s: must be above exporter_down_for (%s), or a target that is down is forgotten before it is reported", t.ExporterMemory, t.ExporterDownFor)
	need(t.ExporterRecent > t.ExporterDownFor, "exporter_recent=%s: must be above exporter_down_for (%s), or an exporter that is gone is forgotten before it is reported", t.ExporterRecent, t.ExporterDownFor)
	need(t.QuietFrom < 24 && t.QuietUntil < 24, "quiet_from=%v, quiet_until=%v: want hours of the day, 0 to 23", t.QuietFrom, t.QuietUntil)
	need(t.ExpiringSoonShare <= t.ExpiringShare, "expiring_share=%v: below expiring_soon_share (%v)", t.ExpiringShare, t.ExpiringSoonShare)
	need(t.ExpiringShare < 1, "expiring_share=%v: must be below 1, where records are gone", t.ExpiringShare)
	need(t.SloAppliedOnce < 1 && t.SloReplayable < 1 && t.SloWatched < 1, "slo_applied_once=%v, slo_replayable=%v, slo_watched=%v: must be below 1", t.SloAppliedOnce, t.SloReplayable, t.SloWatched)
	need(t.MassDeletedShare < 1, "mass_deleted_share=%v: must be below 1", t.MassDeletedShare)
	need(t.DuplicateRatioMin < t.DuplicateRatioMax, "duplicate_ratio_min=%v: must be below duplicate_ratio_max (%v)", t.DuplicateRatioMin, t.DuplicateRatioMax)
	need(t.LatencyObjective < 1, "latency_objective=%v: must be below 1", t.LatencyObjective)
	need(t.BurnFast*(1-t.LatencyObjective) < 1, "burn_fast=%v: with latency_objective=%v no share of slow events reaches it", t.BurnFast, t.LatencyObjective)
	need(t.BurnSlow*(1-t.LatencyObjective) < 1, "burn_slow=%v: with latency_objective=%v no share of slow events reaches it", t.BurnSlow, t.LatencyObjective)
	need(time.Duration(t.RetentionWindow) > 2*time.Duration(t.PruneCycle), "retention_window=%s: must be above two prune cycles (prune_cycle=%s)", t.RetentionWindow, t.PruneCycle)
	sort.Slice(errs, func(i, j int) bool { return errs[i].Error() < errs[j].Error() })
	return errors.Join(errs...)
}
