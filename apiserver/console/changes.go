package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"byre/apiserver/history"
	"byre/apiserver/storage/changes"
	"byre/apiserver/storage/moment"
)

// clusterScoped stands for the namespace of objects without one, in the paths of pages.
const clusterScoped = "-"

// undelete is the command that brings an object back, or "" if its name is not fit for one.
func undelete(r resource, namespace, name string) string {
	switch {
	case r.Group == "" && r.Resource == "namespaces":
		return command("kubectl", "byre", "undelete", "-n", name)
	case namespace == "":
		return command("kubectl", "byre", "undelete", r.FullName()+"/"+name)
	}
	return command("kubectl", "byre", "undelete", r.FullName()+"/"+name, "-n", namespace)
}

const (
	// changesPerPage is how many changes a page shows, and requestsPerPage how many requests a page makes for them at
	// most. A request examines up to 10,000 changes.
	changesPerPage  = 200
	requestsPerPage = 20
)

// timeline is the changes that a page shows, the newest first.
type timeline struct {
	Changes []history.Change
	// Cut says that there may be older changes than the page shows, and Problem why some are missing.
	Cut     bool
	Problem error
}

// spans are the values of the parameter since: the changes of spans of time up to now.
var spans = []struct{ name, value string }{{"1 hour", "1h"}, {"1 day", "24h"}, {"1 week", "168h"},
	{"all that is kept", ""}}

// changes finds the changes in a namespace ("" means all) that selectors and the parameter since select, and
// of these the newest that keep keeps. Of a history that does not reach back to the moment it finds what there is.
func (v *visit) changes(namespace string, keep func(*history.Change) bool, selectors ...fields.Selector) (t timeline) {
	s := history.Search{
		Namespace: namespace, Selector: fields.AndSelectors(selectors...), Keep: keep,
		Limit: changesPerPage, Requests: requestsPerPage,
	}
	var sinceErr, untilErr, missing, err error
	s.Since, sinceErr = v.moment("since")
	s.Until, untilErr = v.moment("until")
	if t.Problem = cmp.Or(sinceErr, untilErr); t.Problem != nil {
		return t
	}
	t.Changes, t.Cut, missing, err = s.Newest(func(path string, query url.Values, into any) error {
		return v.client.get(question{path: path, query: query, accept: asJSON}, into)
	})
	t.Problem = cmp.Or(err, missing)
	return t
}

// moment parses a parameter that is a moment, in UTC: the server does not know the zone of the browser. An empty one is
// the zero moment.
func (v *visit) moment(name string) (m moment.Moment, err error) {
	if text := v.param(name); text != "" {
		if m, err = moment.Parse(text, v.console.config.Now().UTC()); err != nil {
			err = apierrors.NewBadRequest(name + ": " + err.Error())
		}
	}
	return m, err
}

// choices lets the user choose the span of time, and says which one the page shows if it has other bounds.
func (v *visit) choices() g.Node {
	choices := g.Group{g.Text("Changes of the last ")}
	for _, s := range spans {
		choices = append(choices,
			h.A(h.Href(v.here("since", s.value)), g.If(v.param("since") == s.value, h.Aria("current", "true")), g.Text(s.name)),
			g.Text(" "))
	}
	for _, name := range []string{"since", "until"} {
		if m, err := v.moment(name); err == nil && !m.IsZero() {
			choices = append(choices, g.Text(" "+name+" "+m.String()))
		}
	}
	return h.P(h.Class("choice"), choices)
}

// list shows the changes, or what to say if there are none.
func (t *timeline) list(show func(history.Change) g.Node, none string) g.Node {
	return g.Group{
		problem(message(t.Problem)),
		g.If(t.Cut, facts(g.Text("There may be older changes than a page shows."))),
		h.Ol(h.Class("timeline"), g.Map(t.Changes, func(c history.Change) g.Node { return h.Li(show(c)) }),
			g.If(len(t.Changes) == 0, h.Li(h.Class("absent"), g.Text(none)))),
	}
}

// when links to the page of a change, and says when it was.
func (v *visit) when(c *history.Change) g.Node {
	revision := strconv.FormatInt(c.Revision, 10)
	link := v.link(nil, "change", history.ShownIn(c.Object.Namespace), revision)
	return g.Group{a(link, revision), g.Text(" "), v.ago(c.Time.Time), g.Text(" ")}
}

// author is who made a change.
func author(c *history.Change) g.Node {
	return g.Group{h.Strong(bdi(c.Who)),
		g.If(c.RealUser != "", g.Group{g.Text(" (impersonated by "), bdi(c.RealUser), g.Text(")")})}
}

// of names the object of a change, and links to it if its resource is served.
func (v *visit) of(c *history.Change, all []resource) g.Node {
	of, link := c.Object, ""
	if i := slices.IndexFunc(all, func(r resource) bool {
		return r.Group == of.Group && r.Resource == of.Resource
	}); i >= 0 {
		link = v.objectLink(all[i], of.Namespace, of.Name)
	}
	return g.Group{a(link, of.FullName()), labelled(" in ", of.Namespace)}
}

// proposed shows a command, after what it is for; nothing if there is none.
func proposed(purpose, command string) g.Node {
	return g.If(command != "", g.Group{h.P(g.Text(purpose)), h.Pre(h.Class("command"), g.Text(command))})
}

// showChange shows a change with the difference that it made.
func (v *visit) showChange() error {
	namespace, revision := v.r.PathValue("namespace"), v.r.PathValue("revision")
	if _, err := strconv.ParseInt(revision, 10, 64); err != nil {
		return v.showNothing()
	}
	var c history.Change
	if err := v.client.get(question{path: history.Path(namespace) + "/" + revision, accept: asJSON}, &c); err != nil {
		return err
	}
	before, err := history.Decode(c.Before)
	if err != nil {
		return err
	}
	after, err := history.Decode(c.After)
	if err != nil {
		return err
	}
	if c.IsOfSecret() && v.param("secrets") == "" {
		before, after = changes.MaskSecret(before, after)
	}
	diff, err := history.Diff(before, after, "", "")
	if err != nil {
		return err
	}
	all, err := v.client.discover()
	if err != nil {
		return err
	}
	v.render(http.StatusOK, "Revision "+revision,
		facts(author(&c), say(": "+c.FullVerb()+" "), v.of(&c, all), g.Text(", "),
			h.Time(h.DateTime(rfc3339(c.Time.Time)), g.Text(rfc3339(c.Time.Time))), labelled(", by ", c.Manager),
			g.If(c.AuditID != "", g.Group{g.Text(", audit ID "), h.Code(say(c.AuditID))}), g.Text(".")),
		proposed("To reverse it:", command("kubectl", "byre", "undo", revision, "-n", namespace)),
		g.If(c.Unreadable,
			problem("The object can't be read any more: its key is no longer in the encryption configuration.")),
		g.If(c.IsOfSecret() && v.param("secrets") == "",
			facts(g.Text("The values of Secrets are masked: "), a(v.here("secrets", "1"), "show them"), g.Text("."))),
		h.Pre(h.Class("diff"), diffLines(diff), g.If(diff == "", g.Text("No field that is shown has changed."))))
	return nil
}

// diffLines shows the lines of a unified diff.
func diffLines(diff string) (lines g.Group) {
	kinds := map[byte]string{'+': "added", '-': "removed", '@': "place"}
	for line := range strings.Lines(diff) {
		kind := kinds[line[0]]
		lines = append(lines, h.Span(g.If(kind != "", h.Class(kind)), say(strings.TrimSuffix(line, "\n"))), g.Text("\n"))
	}
	return lines
}

// ignored are resources whose deletions are no loss.
var ignored = []string{"events", "leases", "endpointslices", "endpoints", "ipaddresses"}

// showDeleted shows what was deleted, and how to bring it back.
func (v *visit) showDeleted() error {
	system, who := v.param("system") != "", v.param("who")
	keep := func(c *history.Change) bool { return system || !strings.HasPrefix(c.Who, "system:") }
	var deleted timeline
	for _, verb := range []string{"delete", "deletecollection"} {
		selectors := []fields.Selector{fields.OneTermEqualSelector("verb", verb)}
		for _, name := range ignored {
			selectors = append(selectors, fields.OneTermNotEqualSelector("object.resource", name))
		}
		if who != "" {
			selectors = append(selectors, fields.OneTermEqualSelector("who", who))
		}
		found := v.changes(v.param("namespace"), keep, selectors...)
		deleted = timeline{append(deleted.Changes, found.Changes...), deleted.Cut || found.Cut,
			cmp.Or(deleted.Problem, found.Problem)}
	}
	slices.SortFunc(deleted.Changes, func(a, b history.Change) int { return cmp.Compare(b.Revision, a.Revision) })
	// A deletion that finalizers delay is several changes.
	seen := map[string]bool{}
	deleted.Changes = slices.DeleteFunc(deleted.Changes, func(c history.Change) bool {
		again := seen[c.Object.UID]
		seen[c.Object.UID] = c.Object.UID != ""
		return again
	})
	all, err := v.client.discover()
	if err != nil {
		return err
	}
	others := facts(g.Text("Those of the cluster's own components, whose names begin with system:, are left out: "),
		a(v.here("system", "1"), "show them"), g.Text(commandsAsk))
	if system {
		others = facts(g.Text("Those of the cluster's own components are shown too: "),
			a(v.here("system", ""), "leave them out"), g.Text(commandsAsk))
	}
	v.render(http.StatusOK, "Deleted",
		h.Form(h.Method("get"), h.Class("filters"), v.namespaceField(), field("Who", "who", who, ""),
			field("Since", "since", v.param("since"), "yesterday 14:00"), field("Until", "until", v.param("until"), "15:00"),
			g.If(system, hidden("system", "1")), h.Button(g.Text("Filter"))),
		v.choices(), others,
		deleted.list(func(c history.Change) g.Node {
			command := undelete(resource{Group: c.Object.Group, Resource: c.Object.Resource}, c.Object.Namespace, c.Object.Name)
			return g.Group{
				h.P(v.when(&c), h.Strong(bdi(c.Who)), say(" "+c.FullVerb()+" "), v.of(&c, all)),
				g.If(command != "", h.Pre(h.Class("command"), g.Text(command))),
				g.If(command == "", h.P(h.Class("absent"), g.Text("Its name has characters that are not safe in a terminal."))),
			}
		}, "Nothing."))
	return nil
}

const commandsAsk = ". A command asks before it does anything, and is an ordinary request with the rights of whoever runs it."
