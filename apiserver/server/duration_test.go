package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"byre/apiserver/server"
	"byre/sqlstore"
)

func TestParseDuration_TakesGosFormAndDays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"2d": 48 * time.Hour, "1d12h": 36 * time.Hour, "1.5h": 90 * time.Minute, "0": 0, "1y": 365 * 24 * time.Hour} {
		if got, err := server.ParseDuration(text); got != want || err != nil {
			t.Errorf("%s is %v, %v; want %v", text, got, err, want)
		}
	}
	o := server.NewStoreOptions()
	o.RetentionFor = map[string]string{"events": "2x"}
	if _, err := o.ResourceRetentions(); err == nil || !strings.Contains(err.Error(), `"2x" is not a time such as 90d`) {
		t.Errorf("%v", err)
	}
}

// What changes all the time is kept for a day at most, unless a flag says otherwise.
func TestStoreOptions_KeepShortLivedHistoryForADay(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, test := range []struct {
		flags       []string
		pods, lease time.Duration // 0: as --retention
	}{
		{nil, day, day},
		{[]string{"--retention=2160h"}, day, day},
		{[]string{"--retention=0"}, day, day},
		{[]string{"--retention=1h"}, 0, 0},
		{[]string{"--retention-for=pods=7d,deployments.apps=90d"}, 7 * day, day},
		{[]string{"--retention-for=*=36h"}, 36 * time.Hour, 36 * time.Hour},
	} {
		o := server.NewStoreOptions()
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(fs)
		if err := fs.Parse(test.flags); err != nil {
			t.Fatal(err)
		}
		all, err := o.ResourceRetentions()
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]time.Duration)
		for _, of := range []sqlstore.Resource{{Resource: "pods"}, {Group: "coordination.k8s.io", Resource: "leases"}} {
			for _, r := range all {
				if r.Selects(of) {
					got[of.Resource] = r.Age
				}
			}
		}
		if got["pods"] != test.pods || got["leases"] != test.lease {
			t.Errorf("%q: %v", test.flags, got)
		}
	}
}
