package options_test

import (
	"strings"
	"testing"
	"time"

	"byre/apiserver/options"
)

func TestParseDuration_TakesGosFormAndDays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"2d": 48 * time.Hour, "1d12h": 36 * time.Hour, "1.5h": 90 * time.Minute, "0": 0, "1y": 365 * 24 * time.Hour} {
		if got, err := options.ParseDuration(text); got != want || err != nil {
			t.Errorf("%s is %v, %v; want %v", text, got, err, want)
		}
	}
	o := options.NewStoreOptions()
	o.RetentionFor = map[string]string{"events": "2x"}
	if _, err := o.ResourceRetentions(); err == nil || !strings.Contains(err.Error(), `"2x" is not a time such as 90d`) {
		t.Errorf("%v", err)
	}
}
