package checklist

// unseen names the rows of the failure table that nobody can see from outside,
// so that they are not passed over.
func unseen() []Line {
	return []Line{{
		Rule: "auto-commit", Title: "Is automatic offset commit off in every consumer?",
		Verdict: Unknown, Outside: true, Meaning: "Cannot be seen from here: it is a setting inside the consumer.",
		Remedy: "Assert enable.auto.commit=false at start and refuse to run otherwise, as the reference consumer does.",
	}}
}

// What lets lines be looked at that nobody has asked for.
const (
	askConsumers = "name the consumers' own metrics with --consumer.metrics-url, or with --prometheus.url the Prometheus that has them"
	askEffects   = "name the table that the handler writes with --postgres.effect.table"
)
