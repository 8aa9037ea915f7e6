package oracle

import (
	"context"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// notOfByre are the beginnings of the names of stock's metrics that byre does not have: those
// of etcd's client and of the watch cache, and of documents that byre makes when they are asked
// for. byre_store_* and byre_watch_* take their place. Which requests of a server to itself are
// aborted is chance. The watch cache compares itself with etcd once the server has run for five
// minutes, as it does here on a slow machine only.
var notOfByre = []string{
	"etcd_", "grpc_client_", "watch_cache_", "apiserver_watch_cache_", "apiserver_cache_list_",
	"apiserver_init_events_total",
	"apiserver_storage_list_", "apiserver_storage_events_received_total", "apiserver_storage_decode_errors_total",
	"apiserver_watch_events_dispatch_duration_seconds", "apiextensions_openapi_", "apiserver_request_aborts_total",
	"apiserver_storage_consistency_checks_total",
}

// compareMetrics compares the metrics of both servers, after they got the requests of all
// tables: which there are, their labels, and of what the requests are counted as. Dashboards,
// rules and alerts such as kubernetes-mixin's select by these labels. The numbers differ,
// because requests that were polled and each server's own count.
func compareMetrics(t *testing.T, stock, byre *peer) {
	for _, p := range []*peer{stock, byre} {
		p.must(t, http.StatusOK, request{path: "/openapi/v3"}) // which stock asks itself for
	}
	theirs, err := stock.series(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ours, err := byre.series(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(theirs) < 200 {
		t.Fatalf("kube-apiserver has only the metrics %q", slices.Sorted(maps.Keys(theirs)))
	}
	for metric, series := range theirs {
		if ours[metric] == nil {
			if !slices.ContainsFunc(notOfByre, func(start string) bool { return strings.HasPrefix(metric, start) }) {
				t.Errorf("byre does not have %s", metric)
			}
			continue
		}
		if want, got := labelNames(series), labelNames(ours[metric]); !slices.Equal(want, got) {
			t.Errorf("%s has the labels %q, want %q", metric, got, want)
		}
	}
	for _, metric := range []string{"apiserver_request_total", "apiserver_request_sli_duration_seconds_count",
		"apiserver_request_duration_seconds_count"} {
		compareSeries(t, metric, ofTheTables(theirs[metric]), ofTheTables(ours[metric]), 100)
	}
	for labels := range ours["kubernetes_build_info"] {
		// stock's is not built by its release's script
		if !strings.Contains(labels, `git_version="v1.`) || !strings.Contains(labels, `major="1",minor="`) {
			t.Errorf("the build is %s", labels)
		}
	}
	const plugins = "apiserver_admission_controller_admission_duration_seconds_count"
	compareSeries(t, plugins, ofPlugins(theirs[plugins]), ofPlugins(ours[plugins]), 20)
}

// compareSeries compares the labels of a metric's series. There must be at least least.
func compareSeries(t *testing.T, metric string, want, got map[string]bool, least int) {
	t.Helper()
	if len(want) < least {
		t.Errorf("%s has only %d series", metric, len(want))
	}
	for labels := range want {
		if !got[labels] {
			t.Errorf("%s lacks %s", metric, labels)
		}
	}
	for labels := range got {
		if !want[labels] {
			t.Errorf("%s has %s, which kube-apiserver's lacks", metric, labels)
		}
	}
}

// ofTests matches the labels of what the tables' requests ask for many times. Other resources
// have series of each server's own controllers too.
var ofTests = regexp.MustCompile(
	`resource="(pods|configmaps|secrets|services|deployments|horizontalpodautoscalers|controllerrevisions|gizmos|crons|ledgers)"|subresource="openapi/v3/?"`)

// code matches the label of the status. A request that is polled has several, and a busy
// server may answer 429.
var code = regexp.MustCompile(`code="[0-9]+",?`)

// ownWatch matches the labels of a watch of all namespaces. A server's own are counted when they end,
// after five minutes or more.
var ownWatch = regexp.MustCompile(`scope="cluster".*verb="WATCH"`)

// ofTheTables are the series of what the tables' requests ask for, without the status.
func ofTheTables(series map[string]bool) map[string]bool {
	kept := map[string]bool{}
	for labels := range series {
		if ofTests.MatchString(labels) && !ownWatch.MatchString(labels) {
			kept[code.ReplaceAllString(labels, "")] = true
		}
	}
	return kept
}

// operation matches the labels of what an admission plugin was asked and what it said. Each
// server's own writes differ in these.
var operation = regexp.MustCompile(`(operation|rejected)="[^"]*",?`)

// ofPlugins are the series of admission plugins, by their names and what they do: admit or
// validate. NodeRestriction is left out: byre turns it on where the Node authorizer is on.
func ofPlugins(series map[string]bool) map[string]bool {
	kept := map[string]bool{}
	for labels := range series {
		if !strings.Contains(labels, `name="NodeRestriction"`) {
			kept[operation.ReplaceAllString(labels, "")] = true
		}
	}
	return kept
}

var sampleLine = regexp.MustCompile(`(?m)^([a-z_0-9]+)(\{.*\})? \S+$`)

// series are the labels of each metric's series.
func (p *peer) series(ctx context.Context) (map[string]map[string]bool, error) {
	text, err := p.raw(ctx, http.StatusOK, request{path: "/metrics", accept: "text/plain"})
	if err != nil {
		return nil, err
	}
	all := map[string]map[string]bool{}
	for _, match := range sampleLine.FindAllStringSubmatch(string(text), -1) {
		if all[match[1]] == nil {
			all[match[1]] = map[string]bool{}
		}
		all[match[1]][match[2]] = true
	}
	return all, nil
}

var labelName = regexp.MustCompile(`[{,]([a-z_]+)="`)

func labelNames(series map[string]bool) (names []string) {
	for labels := range series {
		for _, match := range labelName.FindAllStringSubmatch(labels, -1) {
			names = append(names, match[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
