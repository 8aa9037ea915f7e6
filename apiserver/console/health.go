package console

import (
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

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
	var version struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := v.client.get(question{path: "/version", accept: asJSON}, &version); err == nil {
		page.Version = version.GitVersion
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

// probe asks a health check.
func (v *visit) probe(path string) (p probe) {
	w, err := v.client.send(v.client.request(question{path: path, query: url.Values{"verbose": {""}}, accept: "text/plain"}))
	if err != nil {
		return p
	}
	p.OK = w.status == http.StatusOK
	for line := range strings.Lines(w.body.String()) {
		name, isCheck := strings.CutPrefix(line, "[+]")
		ok := isCheck
		if !isCheck {
			if name, isCheck = strings.CutPrefix(line, "[-]"); !isCheck {
				continue
			}
		}
		p.Checks = append(p.Checks, check{strings.TrimSpace(name), ok})
	}
	return p
}

// replicas lists the identity Leases of the servers.
func (v *visit) replicas(page *healthPage) error {
	var list struct {
		Items []struct {
			Metadata struct {
				Name   string            `json:"name"`
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
			Spec struct {
				RenewTime time.Time `json:"renewTime"`
			} `json:"spec"`
		} `json:"items"`
	}
	err := v.client.get(question{
		path: "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", accept: asJSON,
		query: url.Values{"labelSelector": {"apiserver.kubernetes.io/identity=kube-apiserver"}},
	}, &list)
	for _, lease := range list.Items {
		page.Replicas = append(page.Replicas, replica{lease.Metadata.Name, lease.Metadata.Labels["kubernetes.io/hostname"], lease.Spec.RenewTime})
	}
	return err
}
