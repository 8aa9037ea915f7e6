package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmezard/go-difflib/difflib"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
	"sigs.k8s.io/yaml"

	"byre/apiserver/history"
	"byre/apiserver/storage/changes"
)

// clusterScoped stands for the namespace of objects without one, in the paths of pages.
const clusterScoped = "-"

// change is an item of the resource changes of history.byre.dev.
type change struct{ history.Change }

// Does is the verb, with the subresource.
func (c *change) Does() string {
	if c.Subresource == "" {
		return c.Verb
	}
	return c.Verb + "/" + c.Subresource
}

// FullName is the name of the object as kubectl takes it, such as deployments.apps/web.
func (c *change) FullName() string {
	return resource{Group: c.Object.Group, Resource: c.Object.Resource}.FullName() + "/" + c.Object.Name
}

// shownIn is the namespace in which a change of an object is listed.
func shownIn(namespace string) string { return cmp.Or(namespace, metav1.NamespaceDefault) }

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
	changesPath = "/apis/" + history.GroupName + "/v1"
	// changesPerPage is how many changes a page shows.
	changesPerPage = 200
	// changesPerRequest is how many changes are asked for at once, and requestsPerPage how many requests
	// a page makes at most. A request examines up to 10,000 changes.
	changesPerRequest = changesPerPage + 1
	requestsPerPage   = 20
)

// timeline is the changes that a page shows, the newest first.
type timeline struct {
	Changes []change
	// Cut says that there may be older changes than the page shows, and Problem why some are missing.
	Cut     bool
	Problem error
}

// spans are the values of the parameter since: the changes of spans of time up to now.
var spans = []struct{ name, value string }{{"1 hour", "1h"}, {"1 day", "24h"}, {"1 week", "168h"}, {"all that is kept", ""}}

// changes finds the changes in a namespace ("" means all) that selectors and the parameter since select, and
// of these the newest that keep keeps. Of a history that does not reach back to the moment it finds what there is.
func (v *visit) changes(namespace string, keep func(*change) bool, selectors ...fields.Selector) (t timeline) {
	newest := fields.AndSelectors(append(selectors, fields.OneTermEqualSelector("order", "newest"))...).String()
	path := changesPath + "/changes"
	if namespace != "" {
		path = changesPath + "/namespaces/" + namespace + "/changes"
	}
	query := url.Values{"limit": {strconv.Itoa(changesPerRequest)}, "fieldSelector": {newest}}
	since, err := time.ParseDuration(v.param("since"))
	from := v.console.config.Now().Add(-since)
	if err == nil {
		query.Set("fieldSelector", newest+",since="+moment(from))
	}
	for range requestsPerPage {
		var list struct {
			metav1.ListMeta `json:"metadata"`
			Items           []change `json:"items"`
		}
		if err := v.client.get(question{path: path, query: query, accept: asJSON}, &list); err != nil {
			t.Problem = err
			if query.Get("fieldSelector") == newest || !apierrors.IsResourceExpired(err) {
				return t
			}
			t.Changes, query = nil, url.Values{"limit": query["limit"], "fieldSelector": {newest}}
			continue
		}
		for _, c := range list.Items {
			if t.Problem != nil && c.Time.Time.Before(from) {
				t.Cut = false
				return t
			}
			if !keep(&c) {
				continue
			}
			if t.Cut = len(t.Changes) == changesPerPage; t.Cut {
				return t
			}
			t.Changes = append(t.Changes, c)
		}
		if t.Cut = list.Continue != ""; !t.Cut {
			break
		}
		query.Set("continue", list.Continue)
	}
	return t
}

// choices lets the user choose the span of time.
func (v *visit) choices() g.Node {
	choices := g.Group{g.Text("Changes of the last ")}
	for _, s := range spans {
		choices = append(choices, h.A(h.Href(v.here("since", s.value)), g.If(v.param("since") == s.value, h.Aria("current", "true")), g.Text(s.name)), g.Text(" "))
	}
	return h.P(h.Class("choice"), choices)
}

// list shows the changes, or what to say if there are none.
func (t *timeline) list(show func(change) g.Node, none string) g.Node {
	return g.Group{
		problem(message(t.Problem)),
		g.If(t.Cut, facts(g.Text("There may be older changes than a page shows."))),
		h.Ol(h.Class("timeline"), g.Map(t.Changes, func(c change) g.Node { return h.Li(show(c)) }),
			g.If(len(t.Changes) == 0, h.Li(h.Class("absent"), g.Text(none)))),
	}
}

// when links to the page of a change, and says when it was.
func (v *visit) when(c *change) g.Node {
	revision := strconv.FormatInt(c.Revision, 10)
	return g.Group{a(v.link(nil, "change", shownIn(c.Object.Namespace), revision), revision), g.Text(" "), v.ago(c.Time.Time), g.Text(" ")}
}

// author is who made a change.
func (c *change) author() g.Node {
	return g.Group{h.Strong(bdi(c.Who)), g.If(c.RealUser != "", g.Group{g.Text(" (impersonated by "), bdi(c.RealUser), g.Text(")")})}
}

// of names the object of a change, and links to it if its resource is served.
func (v *visit) of(c *change, all []resource) g.Node {
	of, link := c.Object, ""
	if i := slices.IndexFunc(all, func(r resource) bool { return r.Group == of.Group && r.Resource == of.Resource }); i >= 0 {
		link = v.objectLink(all[i], of.Namespace, of.Name)
	}
	return g.Group{a(link, c.FullName()), labelled(" in ", of.Namespace)}
}

// proposed shows a command, after what it is for; nothing if there is none.
func proposed(purpose, command string) g.Node {
	return g.If(command != "", g.Group{h.P(g.Text(purpose)), h.Pre(h.Class("command"), g.Text(command))})
}

// diffLine is a line of a unified diff. Kind is added, removed, place or empty.
type diffLine struct{ Kind, Text string }

// showChange shows a change with the difference that it made.
func (v *visit) showChange() error {
	namespace, revision := v.r.PathValue("namespace"), v.r.PathValue("revision")
	if _, err := strconv.ParseInt(revision, 10, 64); err != nil {
		return v.showNothing()
	}
	var c change
	if err := v.client.get(question{path: changesPath + "/namespaces/" + namespace + "/changes/" + revision, accept: asJSON}, &c); err != nil {
		return err
	}
	if c.IsOfSecret() && v.param("secrets") == "" {
		if err := c.mask(); err != nil {
			return err
		}
	}
	lines, err := c.diff()
	if err != nil {
		return err
	}
	all, err := v.client.discover()
	if err != nil {
		return err
	}
	v.render(http.StatusOK, "Revision "+revision,
		facts(c.author(), say(": "+c.Does()+" "), v.of(&c, all), g.Text(", "), h.Time(h.DateTime(moment(c.Time.Time)), g.Text(moment(c.Time.Time))), labelled(", by ", c.Manager),
			g.If(c.AuditID != "", g.Group{g.Text(", audit ID "), h.Code(say(c.AuditID))}), g.Text(".")),
		proposed("To reverse it:", command("kubectl", "byre", "undo", revision, "-n", namespace)),
		g.If(c.Unreadable, problem("The object can't be read any more: its key is no longer in the encryption configuration.")),
		g.If(c.IsOfSecret() && v.param("secrets") == "", facts(g.Text("The values of Secrets are masked: "), a(v.here("secrets", "1"), "show them"), g.Text("."))),
		h.Pre(h.Class("diff"),
			g.Map(lines, func(l diffLine) g.Node {
				return g.Group{h.Span(g.If(l.Kind != "", h.Class(l.Kind)), say(l.Text)), g.Text("\n")}
			}),
			g.If(len(lines) == 0, g.Text("No field that is shown has changed."))))
	return nil
}

// mask masks the values of a Secret before and after the change.
func (c *change) mask() error {
	var versions [2]map[string]any
	for i, version := range []*runtime.RawExtension{c.Before, c.After} {
		if version == nil {
			continue
		}
		if err := json.Unmarshal(version.Raw, &versions[i]); err != nil {
			return err
		}
	}
	versions[0], versions[1] = changes.MaskSecret(versions[0], versions[1])
	for i, version := range []*runtime.RawExtension{c.Before, c.After} {
		if version == nil {
			continue
		}
		version.Raw = changes.Encode(versions[i])
	}
	return nil
}

// diff compares the object before and after the change, as YAML.
func (c *change) diff() (lines []diffLine, err error) {
	before, err := yamlLines(c.Before)
	if err != nil {
		return nil, err
	}
	after, err := yamlLines(c.After)
	if err != nil {
		return nil, err
	}
	if len(before)+len(after) > mostCompared {
		return replaced(before, after), nil
	}
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{A: before, B: after, Context: 3})
	if err != nil {
		return nil, err
	}
	kinds := map[byte]string{'+': "added", '-': "removed", '@': "place"}
	for line := range strings.Lines(text) {
		lines = append(lines, diffLine{kinds[line[0]], strings.TrimSuffix(line, "\n")})
	}
	return lines, nil
}

// mostCompared is how many lines of two versions are compared line by line: that takes the product of their numbers.
const mostCompared = 4000

// replaced is the difference of two versions as one place: the lines from the first to the last that differ.
func replaced(before, after []string) (lines []diffLine) {
	same := 0
	for same < min(len(before), len(after)) && before[same] == after[same] {
		same++
	}
	before, after = before[same:], after[same:]
	for len(before) > 0 && len(after) > 0 && before[len(before)-1] == after[len(after)-1] {
		before, after = before[:len(before)-1], after[:len(after)-1]
	}
	if len(before)+len(after) > 0 {
		lines = append(lines, diffLine{"place", fmt.Sprintf("@@ -%d,%d +%d,%d @@", same+1, len(before), same+1, len(after))})
	}
	for _, line := range before {
		lines = append(lines, diffLine{"removed", "-" + strings.TrimSuffix(line, "\n")})
	}
	for _, line := range after {
		lines = append(lines, diffLine{"added", "+" + strings.TrimSuffix(line, "\n")})
	}
	return lines
}

// yamlLines returns an object as lines of YAML; none if there is no object.
func yamlLines(object *runtime.RawExtension) ([]string, error) {
	if object == nil {
		return nil, nil
	}
	text, err := yaml.JSONToYAML(object.Raw)
	return difflib.SplitLines(strings.TrimSuffix(string(text), "\n")), err
}

// ignored are resources whose deletions are no loss.
var ignored = []string{"events", "leases", "endpointslices", "endpoints", "ipaddresses"}

// showDeleted shows what was deleted, and how to bring it back.
func (v *visit) showDeleted() error {
	system, who := v.param("system") != "", v.param("who")
	keep := func(c *change) bool { return system || !strings.HasPrefix(c.Who, "system:") }
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
		deleted = timeline{append(deleted.Changes, found.Changes...), deleted.Cut || found.Cut, cmp.Or(deleted.Problem, found.Problem)}
	}
	slices.SortFunc(deleted.Changes, func(a, b change) int { return cmp.Compare(b.Revision, a.Revision) })
	// A deletion that finalizers delay is several changes.
	seen := map[string]bool{}
	deleted.Changes = slices.DeleteFunc(deleted.Changes, func(c change) bool {
		again := seen[c.Object.UID]
		seen[c.Object.UID] = c.Object.UID != ""
		return again
	})
	all, err := v.client.discover()
	if err != nil {
		return err
	}
	others := facts(g.Text("Those of the cluster's own components, whose names begin with system:, are left out: "), a(v.here("system", "1"), "show them"), g.Text(commandsAsk))
	if system {
		others = facts(g.Text("Those of the cluster's own components are shown too: "), a(v.here("system", ""), "leave them out"), g.Text(commandsAsk))
	}
	v.render(http.StatusOK, "Deleted",
		h.Form(h.Method("get"), h.Class("filters"), v.namespaceField(), field("Who", "who", who, ""), g.If(system, hidden("system", "1")), h.Button(g.Text("Filter"))),
		v.choices(), others,
		deleted.list(func(c change) g.Node {
			command := undelete(resource{Group: c.Object.Group, Resource: c.Object.Resource}, c.Object.Namespace, c.Object.Name)
			return g.Group{
				h.P(v.when(&c), h.Strong(bdi(c.Who)), say(" "+c.Does()+" "), v.of(&c, all)),
				g.If(command != "", h.Pre(h.Class("command"), g.Text(command))),
				g.If(command == "", h.P(h.Class("absent"), g.Text("Its name has characters that are not safe in a terminal."))),
			}
		}, "Nothing."))
	return nil
}

const commandsAsk = ". A command asks before it does anything, and is an ordinary request with the rights of whoever runs it."
