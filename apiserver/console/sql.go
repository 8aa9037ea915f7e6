package console

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"byre/apiserver/query"
)

// resultRows is how many rows of a result a page shows.
const resultRows = 1000

// query asks a statement.
func (c *client) query(statement string, limit int64, parameters ...string) (*query.Query, error) {
	q := query.NewQuery(statement, query.Texts(parameters...)...)
	q.Spec.Limit = &limit
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	err = c.get(question{path: query.Path, accept: asJSON, contentType: asJSON, body: body}, q)
	if apierrors.IsNotFound(err) {
		err = &apierrors.StatusError{ErrStatus: failure(http.StatusNotFound, "SQL is off on this server: --enable-sql")}
	}
	return q, err
}

// showSQL shows the result of the statement in the URL.
func (v *visit) showSQL() error {
	statement := v.param("q")
	download := question{path: query.Path, contentType: "application/sql", body: []byte(statement)}
	switch v.param("format") {
	case "csv":
		download.accept = query.CSV
	case "ndjson":
		download.accept = query.NDJSON
	}
	if download.accept != "" {
		v.forward(download)
		return nil
	}
	var result g.Node
	status, why := http.StatusOK, ""
	if statement != "" {
		start := v.console.config.Now()
		q, err := v.client.query(statement, resultRows)
		took := v.console.config.Now().Sub(start).Round(time.Millisecond)
		var failed apierrors.APIStatus
		switch {
		case errors.As(err, &failed):
			status, why = int(failed.Status().Code), failed.Status().Message
		case err != nil:
			return err
		default:
			result = v.result(q, took)
		}
	}
	v.render(status, "SQL",
		h.Form(h.Method("get"), h.Class("statement"),
			h.Label(h.For("q"), g.Text("One SELECT, in SQLite's dialect")),
			// A line break after the tag is no part of the text.
			h.Textarea(h.ID("q"), h.Name("q"), h.Rows("6"), g.Attr("spellcheck", "false"), g.Attr("autocapitalize", "off"),
				g.Text("\n"+statement)),
			h.Button(g.Text("Ask"))),
		h.Details(g.If(statement == "", g.Attr("open")), h.Summary(g.Text("Saved queries")),
			h.Ul(h.Class("saved"), g.Map(savedQueries(), func(s saved) g.Node {
				return h.Li(a(v.link(url.Values{"q": {s.Statement}}, "sql"), s.Title))
			}))),
		problem(why), result)
	return nil
}

// result shows the rows of an answer.
func (v *visit) result(q *query.Query, took time.Duration) g.Node {
	var names g.Group
	for _, c := range q.Status.Columns {
		names = append(names, h.Th(say(c.Name)))
	}
	return g.Group{
		facts(g.Textf("%d rows at revision %s, in %s", len(q.Status.Rows), q.Status.ResourceVersion, took),
			g.If(q.Status.Truncated, g.Text("; there are more, up to 100,000 of which the downloads have")), g.Text(". "),
			a(v.here("format", "csv"), ".csv"), g.Text(" "), a(v.here("format", "ndjson"), ".ndjson")),
		grid(names, g.Map(q.Status.Rows, func(row []json.RawMessage) g.Node {
			return h.Tr(g.Map(row, func(value json.RawMessage) g.Node { return h.Td(say(query.CellText(value))) }))
		})),
	}
}

// saved is a statement that the page offers.
type saved struct{ Title, Statement string }

// savedQueries returns the statements that the page offers. A test asks each of them.
func savedQueries() []saved {
	return []saved{
		{Title: "Pods by node and phase",
			Statement: "SELECT node, phase, count(*) AS pods\nFROM pods\nGROUP BY node, phase\nORDER BY pods DESC"},
		{Title: "Pods that are not ready",
			Statement: "SELECT namespace, name, phase, ready, restarts, node\nFROM pods\nWHERE phase NOT IN ('Running', 'Succeeded')\nORDER BY created"},
		{Title: "Pods that restart most",
			Statement: "SELECT namespace, name, restarts, node\nFROM pods\nWHERE restarts > 0\nORDER BY restarts DESC"},
		{Title: "Images, by containers",
			Statement: "SELECT image, count(*) AS containers\nFROM containers\nGROUP BY image\nORDER BY containers DESC, image"},
		{Title: "Containers without a memory limit",
			Statement: "SELECT namespace, name, container, image\nFROM containers\nWHERE memory_limit IS NULL"},
		{Title: "Requests on each node",
			Statement: "SELECT n.name AS node, sum(c.cpu_request) AS cpu, sum(c.memory_request) AS memory,\n" +
				"  quantity(n.object ->> '$.status.allocatable.cpu') AS cpu_allocatable\nFROM nodes n\nLEFT JOIN pods p ON p.node = n.name\n" +
				"LEFT JOIN containers c ON c.namespace = p.namespace AND c.name = p.name\nGROUP BY n.name"},
		{Title: "What has changed in the last hour",
			Statement: "SELECT time, who, verb, resource, namespace, name\nFROM changes\nWHERE time > ago('1h') AND subresource IS NULL\nORDER BY revision DESC"},
		{Title: "Who has scaled what since yesterday",
			Statement: "SELECT time, who, resource, namespace, name, old, new\nFROM field_changes\nWHERE path = 'spec.replicas' AND time > ago('24h')\nORDER BY revision DESC"},
		{Title: "Deployments that lack replicas",
			Statement: "SELECT namespace, name, replicas, ready, available\nFROM deployments\nWHERE replicas > coalesce(ready, 0)"},
		{Title: "Who may read Secrets in all namespaces",
			Statement: "SELECT b.name AS binding, s.value ->> 'kind' AS kind, s.value ->> 'name' AS subject\n" +
				"FROM clusterrolebindings b\nJOIN rbac_rules r ON r.resource = 'clusterroles' AND r.name = b.role_ref_name,\n  json_each(b.subjects) AS s\n" +
				"WHERE r.rule_resource IN ('secrets', '*') AND r.verb IN ('get', 'list', '*')\nGROUP BY 1, 2, 3"},
		{Title: "Objects in deletion",
			Statement: "SELECT 'namespace' AS kind, NULL AS namespace, name, deleted FROM namespaces WHERE deleted IS NOT NULL\n" +
				"UNION ALL SELECT 'pod', namespace, name, deleted FROM pods WHERE deleted IS NOT NULL\n" +
				"UNION ALL SELECT 'claim', namespace, name, deleted FROM persistentvolumeclaims WHERE deleted IS NOT NULL"},
		{Title: "All tables", Statement: "SELECT table_name, description\nFROM byre_tables\nORDER BY table_name"},
	}
}
