package config

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/prometheus/common/promslog"
)

// Log is the flags of Prometheus' programs for logging.
type Log struct {
	Level  string `default:"info" enum:"debug,info,warn,error" help:"Only log messages of this severity or above: ${enum}."`
	Format string `default:"logfmt" enum:"logfmt,json" help:"Output format of log messages: ${enum}."`
}

// New makes the logger.
func (l Log) New(w io.Writer) (*slog.Logger, error) {
	level, format := promslog.NewLevel(), promslog.NewFormat()
	if err := level.Set(l.Level); err != nil {
		return nil, fmt.Errorf("--log.level: %w", err)
	}
	if err := format.Set(l.Format); err != nil {
		return nil, fmt.Errorf("--log.format: %w", err)
	}
	return promslog.New(&promslog.Config{Level: level, Format: format, Writer: w}), nil
}
