package console

import (
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/ptr"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

// healthPage is the page of the server's health.
type healthPage struct {
	Ready, Live probe
	Version     string
	Metrics     []metric
	Replicas    []replica
	// MetricsProblem and ReplicasProblem are why there are none.
	MetricsProblem, ReplicasProblem string
}

// probe is the answer of a health check.
type probe struct {
	OK     bool
	Checks []check
}

type check struct {
	Name string
	OK   bool
}

type metric struct{ Name, Labels, Value string }

// replica is a server, as its identity Lease has it.
type replica struct {
	Name, Host string
	Renewed    time.Time
}

// shownMetrics are the metrics of the store that the page shows.
var shownMetrics = regexp.MustCompile(`(?m)^(byre_store_[a-z_]+|byre_watch_revision|byre_watch_resources|byre_watch_state_bytes|byre_schema_version|apiserver_storage_size_bytes)(\{.*\})? ([^ \n]+)`)

// hiddenMetrics are histograms' parts, and others that say nothing by themselves.
var hiddenMetrics = regexp.MustCompile(`_(bucket|sum|count|created)$`)

// showHealth shows the checks, the state of the store, and the servers of the cluster.
func (v *visit) showHealth() error {
	page := healthPage{Ready: v.probe("/readyz"), Live: v.probe("/livez")}
	var info version.Info
	if err := v.client.get(question{path: "/version", accept: asJSON}, &info); err == nil {
		page.Version = info.GitVersion
	}
	if text, err := v.client.ask(question{path: "/metrics", accept: "text/plain"}); err != nil {
		page.MetricsProblem = message(err)
	} else {
		for _, m := range shownMetrics.FindAllSubmatch(text, -1) {
			if !hiddenMetrics.Match(m[1]) {
				page.Metrics = append(page.Metrics, metric{string(m[1]), string(m[2]), number(string(m[3]))})
			}
		}
	}
	if err := v.replicas(&page); err != nil {
		page.ReplicasProblem = message(err)
	}
	v.render(http.StatusOK, "Health", page)
	return nil
}

func (p healthPage) body(v *visit) g.Node {
	return v.refreshed(
		facts(g.If(p.Version != "", say("Kubernetes "+p.Version+", ")), p.Ready.says("ready"), g.Text(", "), p.Live.says("live"), g.Text(".")),
		h.H2(g.Text("Store")), problem(p.MetricsProblem),
		grid(g.Group{h.Th(g.Text("Metric")), h.Th(h.Class("number"), g.Text("Value"))}, g.Map(p.Metrics, func(m metric) g.Node {
			return h.Tr(h.Td(h.Code(g.Text(m.Name)), g.If(m.Labels != "", g.Group{g.Text(" "), h.Small(say(m.Labels))})), h.Td(h.Class("number"), g.Text(m.Value)))
		})),
		h.H2(g.Text("Servers")), problem(p.ReplicasProblem),
		grid(g.Group{h.Th(g.Text("Server")), h.Th(g.Text("Host")), h.Th(g.Text("Renewed"))},
			g.Map(p.Replicas, func(r replica) g.Node {
				return h.Tr(h.Td(say(r.Name)), h.Td(say(r.Host)), h.Td(v.age(r.Renewed), g.Text(" ago")))
			}),
			g.If(len(p.Replicas) == 0, h.Tr(h.Td(h.ColSpan("3"), h.Class("absent"), g.Text("None are known."))))),
		h.H2(g.Text("Checks")),
		h.Ul(h.Class("checks"), g.Map(p.Ready.Checks, func(c check) g.Node { return h.Li(h.Class(quality(c.OK)), say(c.Name)) }),
			g.If(len(p.Ready.Checks) == 0, h.Li(h.Class("absent"), g.Text("They are not shown.")))),
	)
}

// quality is the class of what is well, or not.
func quality(ok bool) string {
	if ok {
		return "good"
	}
	return "bad"
}

// says tells whether the server is ready, or live.
func (p probe) says(what string) g.Node {
	if !p.OK {
		what = "not " + what
	}
	return h.Strong(h.Class(quality(p.OK)), g.Text(what))
}

// number is a value of a metric without an exponent.
func number(value string) string {
	if n, err := strconv.ParseFloat(value, 64); err == nil {
		return strconv.FormatFloat(n, 'f', -1, 64)
	}
	return value
}

// checkLine is the line of a check in the answer of a health check.
var checkLine = regexp.MustCompile(`(?m)^\[([+-])\](.*)`)

// probe asks a health check.
func (v *visit) probe(path string) (p probe) {
	w, err := v.client.send(v.client.request(question{path: path, query: url.Values{"verbose": {""}}, accept: "text/plain"}))
	if err != nil {
		return p
	}
	p.OK = w.status == http.StatusOK
	for _, line := range checkLine.FindAllStringSubmatch(w.body.String(), -1) {
		p.Checks = append(p.Checks, check{strings.TrimSpace(line[2]), line[1] == "+"})
	}
	return p
}

// replicas lists the identity Leases of the servers.
func (v *visit) replicas(page *healthPage) error {
	var list coordinationv1.LeaseList
	err := v.client.get(question{
		path: "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", accept: asJSON,
		query: url.Values{"labelSelector": {"apiserver.kubernetes.io/identity=kube-apiserver"}},
	}, &list)
	for _, lease := range list.Items {
		renewed := ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{})
		page.Replicas = append(page.Replicas, replica{lease.Name, lease.Labels[corev1.LabelHostname], renewed.Time})
	}
	return err
}
