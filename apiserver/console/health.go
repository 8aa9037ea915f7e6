package console

import (
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/ptr"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

// probe is the answer of a health check.
type probe struct {
	OK     bool
	Checks []check
}

type check struct {
	Name string
	OK   bool
}

// shownMetrics are the metrics of the store that the page shows.
var shownMetrics = regexp.MustCompile(
	`(?m)^(byre_store_[a-z_]+|byre_watch_revision|byre_watch_resources|byre_watch_state_bytes|byre_schema_version|apiserver_storage_size_bytes)(\{.*\})? ([^ \n]+)`)

// hiddenMetrics are histograms' parts, and others that say nothing by themselves.
var hiddenMetrics = regexp.MustCompile(`_(bucket|sum|count|created)$`)

// showHealth shows the checks, the state of the store, and the servers of the cluster.
func (v *visit) showHealth() error {
	ready, live := v.probe("/readyz"), v.probe("/livez")
	var info version.Info
	if err := v.client.get(question{path: "/version", accept: asJSON}, &info); err != nil {
		info.GitVersion = ""
	}
	metrics, why := v.metrics()
	servers, whyNoServers := v.servers()
	v.render(http.StatusOK, "Health", v.refreshed(
		facts(g.If(info.GitVersion != "", say("Kubernetes "+info.GitVersion+", ")), ready.says("ready"), g.Text(", "),
			live.says("live"), g.Text(".")),
		h.H2(g.Text("Store")), problem(why),
		grid(g.Group{h.Th(g.Text("Metric")), h.Th(h.Class("number"), g.Text("Value"))}, metrics),
		h.H2(g.Text("Servers")), problem(whyNoServers),
		grid(g.Group{h.Th(g.Text("Server")), h.Th(g.Text("Host")), h.Th(g.Text("Renewed"))}, servers,
			g.If(len(servers) == 0, h.Tr(h.Td(h.ColSpan("3"), h.Class("absent"), g.Text("None are known."))))),
		h.H2(g.Text("Checks")),
		h.Ul(h.Class("checks"), g.Map(ready.Checks, func(c check) g.Node {
			return h.Li(h.Class(quality(c.OK)), say(c.Name))
		}),
			g.If(len(ready.Checks) == 0, h.Li(h.Class("absent"), g.Text("They are not shown.")))),
	))
	return nil
}

// metrics returns the rows of shownMetrics, or why there are none.
func (v *visit) metrics() (rows g.Group, why string) {
	text, err := v.client.ask(question{path: "/metrics", accept: "text/plain"})
	if err != nil {
		return nil, message(err)
	}
	for _, m := range shownMetrics.FindAllSubmatch(text, -1) {
		if name, labels := string(m[1]), string(m[2]); !hiddenMetrics.MatchString(name) {
			rows = append(rows,
				h.Tr(h.Td(h.Code(g.Text(name)), g.If(labels != "", g.Group{g.Text(" "), h.Small(say(labels))})),
					h.Td(h.Class("number"), g.Text(number(string(m[3]))))))
		}
	}
	return rows, ""
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
	w, err := v.client.send(v.client.request(question{path: path, query: url.Values{"verbose": {""}},
		accept: "text/plain"}))
	if err != nil {
		return p
	}
	p.OK = w.status == http.StatusOK
	for _, line := range checkLine.FindAllStringSubmatch(w.body.String(), -1) {
		p.Checks = append(p.Checks, check{strings.TrimSpace(line[2]), line[1] == "+"})
	}
	return p
}

// servers returns the rows of the identity Leases of the servers, or why there are none.
func (v *visit) servers() (rows g.Group, why string) {
	var list coordinationv1.LeaseList
	if err := v.client.get(question{
		path: "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", accept: asJSON,
		query: url.Values{"labelSelector": {"apiserver.kubernetes.io/identity=kube-apiserver"}},
	}, &list); err != nil {
		return nil, message(err)
	}
	for _, lease := range list.Items {
		renewed := ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{})
		rows = append(rows,
			h.Tr(h.Td(say(lease.Name)), h.Td(say(lease.Labels[corev1.LabelHostname])),
				h.Td(v.age(renewed.Time), g.Text(" ago"))))
	}
	return rows, ""
}
