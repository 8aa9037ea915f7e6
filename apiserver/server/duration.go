package server

import (
	"fmt"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/pflag"
)

// ParseDuration reads a duration as Go writes it, such as 1h30m, or with days, weeks and years,
// such as 90d or 1d12h.
func ParseDuration(text string) (time.Duration, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	}
	d, err := model.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a time such as 90d, 12h, 5m or 1h30m", text)
	}
	return time.Duration(d), nil
}

// AcceptDays makes a flag take what ParseDuration reads. It changes only flags for durations, those
// of upstream's packages too.
func AcceptDays(flag *pflag.Flag) {
	if flag.Value.Type() == "duration" {
		flag.Value = withDays{flag.Value}
	}
}

type withDays struct{ pflag.Value }

// Unwrap returns the value that was there before.
func (d withDays) Unwrap() pflag.Value { return d.Value }

// Set implements pflag.Value.
func (d withDays) Set(text string) error {
	parsed, err := ParseDuration(text)
	if err != nil {
		return err
	}
	return d.Value.Set(parsed.String())
}
