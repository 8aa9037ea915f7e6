package console

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
	"sigs.k8s.io/yaml"
)

// objectPage is the page of an object.
type objectPage struct {
	resource
	Namespace string
	// Exists is false if there is only the history.
	Exists   bool
	Undelete string
	YAML     string
	Created  time.Time
	Labels   []reference
	Owners   []reference
	Timeline timeline
	// Owned are the objects whose controller the object is, and OwnedProblem why there are none.
	Owned        []reference
	OwnedProblem string

	// Inside links to what a namespace has.
	Inside                string
	Table, AsYAML, AsJSON string
}

// reference is a text that may link to a page.
type reference struct{ Text, Link string }

// showObject shows an object and what happened to it. An object that is gone has its history.
func (v *visit) showObject() error {
	r, all, err := v.find()
	if err != nil {
		return err
	}
	namespace, name := strings.TrimSuffix(v.r.PathValue("namespace"), clusterScoped), v.r.PathValue("name")
	if r.Namespaced != (namespace != "") {
		return v.showNothing()
	}
	get := question{path: r.path(namespace) + "/" + name, accept: asJSON}
	switch v.param("format") {
	case "json":
		v.client.forward(v.w, get)
		return nil
	case "yaml":
		get.accept = "application/yaml"
		v.client.forward(v.w, get)
		return nil
	}
	page := objectPage{
		resource: r, Namespace: namespace, Undelete: undelete(r, namespace, name),
		Table: v.tableLink(r, namespace), AsYAML: v.here("format", "yaml"), AsJSON: v.here("format", "json"),
	}
	if r.Group == "" && r.Resource == "namespaces" {
		page.Inside = v.link(url.Values{"namespace": {name}})
	}
	var object unstructured.Unstructured
	switch err := v.client.get(get, &object.Object); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	default:
		page.Exists = true
		if err := v.describe(&page, &object, all); err != nil {
			return err
		}
	}
	page.Timeline = v.changes(shownIn(namespace), func(*change) bool { return true }, fields.SelectorFromSet(fields.Set{
		"object.group": r.Group, "object.resource": r.Resource, "object.name": name,
	}))
	if !page.Exists && len(page.Timeline.Changes) == 0 {
		return &apierrors.StatusError{ErrStatus: failure(http.StatusNotFound, "there is no "+r.FullName()+"/"+name+", and no history of it that you may see")}
	}
	v.render(http.StatusOK, name, page)
	return nil
}

func (p objectPage) body(v *visit) g.Node {
	where := g.Group{a(p.Table, p.FullName()), labelled(" in ", p.Namespace)}
	happened := g.Group{
		h.H2(g.Text("What happened")), p.Timeline.choices(),
		p.Timeline.list(func(c linked) g.Node { return c.body(v) }, "No changes."),
	}
	if !p.Exists {
		return g.Group{
			facts(where, g.Text(". "), h.Strong(g.Text("It does not exist."))),
			g.If(p.Undelete != "", g.Group{h.P(g.Text("To create its last version again:")), h.Pre(h.Class("command"), g.Text(p.Undelete))}),
			happened,
		}
	}
	return g.Group{
		facts(where, g.Text(", "), v.age(p.Created), g.Text(" old ("+moment(p.Created)+"). "), a(p.AsYAML, ".yaml"), g.Text(" "), a(p.AsJSON, ".json")),
		g.If(p.Inside != "", h.P(a(p.Inside, "What is in it"))),
		g.If(len(p.Labels) > 0, h.P(g.Text("Labels: "), g.Map(p.Labels, func(l reference) g.Node {
			return g.Group{h.A(h.Class("label"), h.Href(l.Link), say(l.Text)), g.Text(" ")}
		}))),
		g.If(len(p.Owners) > 0, h.P(g.Text("Owned by "), g.Map(p.Owners, func(o reference) g.Node { return g.Group{a(o.Link, o.Text), g.Text(" ")} }))),
		happened,
		h.H2(g.Text("What it controls")), problem(p.OwnedProblem),
		g.If(len(p.Owned) > 0, h.Ul(g.Map(p.Owned, func(o reference) g.Node { return h.Li(a(o.Link, o.Text)) }))),
		g.If(len(p.Owned) == 0 && p.OwnedProblem == "", h.P(h.Class("absent"), g.Text("Nothing."))),
		h.H2(g.Text("YAML")), h.Pre(say(p.YAML)),
	}
}

// body shows a change of the object, with the fields that it changed.
func (c *linked) body(v *visit) g.Node {
	var rows g.Group
	for _, f := range c.Changed {
		rows = append(rows, h.Li(h.Code(say(f.Path)), g.Text(": "), g.If(f.Old != "", h.Del(say(f.Old))), g.Text(" "), g.If(f.New != "", h.Ins(say(f.New)))))
	}
	if len(rows) > 0 && c.MoreChanged > 0 {
		rows = append(rows, h.Li(g.Textf("%d more", c.MoreChanged)))
	}
	return g.Group{
		h.P(c.when(v), c.author(), say(" "+c.Does()), labelled(", by ", c.Manager)),
		g.If(len(rows) > 0, h.Ul(h.Class("fields"), rows)),
		g.If(c.Unreadable, h.P(h.Class("absent"), g.Text("The object can't be read any more."))),
	}
}

// describe fills in what the object itself says, and what it owns.
func (v *visit) describe(page *objectPage, object *unstructured.Unstructured, all []resource) error {
	page.Created = object.GetCreationTimestamp().Time
	for _, key := range slices.Sorted(maps.Keys(object.GetLabels())) {
		label := key + "=" + object.GetLabels()[key]
		page.Labels = append(page.Labels, reference{label, v.link(
			url.Values{"namespace": {page.Namespace}, "labelSelector": {label}}, "r", page.groupInPath(), page.Version, page.Resource)})
	}
	for _, owner := range object.GetOwnerReferences() {
		page.Owners = append(page.Owners, v.referTo(owner.APIVersion, owner.Kind, page.Namespace, owner.Name, all))
	}
	unstructured.RemoveNestedField(object.Object, "metadata", "managedFields")
	text, err := yaml.Marshal(object.Object)
	if err != nil {
		return err
	}
	page.YAML = string(text)
	page.Owned, err = v.owned(page.Namespace, string(object.GetUID()), all)
	if err != nil {
		page.OwnedProblem = message(err)
	}
	return nil
}

// referTo refers to an object that an owner reference names.
func (v *visit) referTo(apiVersion, kind, namespace, name string, all []resource) reference {
	gv, _ := schema.ParseGroupVersion(apiVersion) // the server has validated it
	to := reference{Text: kind + "/" + name}
	i := slices.IndexFunc(all, func(r resource) bool { return r.Group == gv.Group && r.Version == gv.Version && r.Kind == kind })
	if i >= 0 {
		if !all[i].Namespaced {
			namespace = ""
		}
		to.Link = v.objectLink(all[i], namespace, name)
	}
	return to
}

// mostOwned is how many objects a page shows that an object owns.
const mostOwned = 200

// owned finds the objects whose controller has a UID, by SQL: in the namespace of the owner, or in all if it
// has none.
func (v *visit) owned(namespace, uid string, all []resource) (found []reference, err error) {
	statement, parameters := `SELECT t."group", t.resource, o.namespace, o.name FROM owners o JOIN byre_tables t ON t.table_name = o.resource WHERE o.uid = ?1 AND o.controller`, []string{uid}
	if namespace != "" {
		statement, parameters = statement+" AND o.namespace = ?2", append(parameters, namespace)
	}
	rows, err := v.client.query(statement, mostOwned, parameters...)
	if err != nil {
		return nil, err
	}
	for _, row := range rows.Status.Rows {
		i := slices.IndexFunc(all, func(r resource) bool { return r.Group == text(row[0]) && r.Resource == text(row[1]) })
		if i >= 0 {
			found = append(found, reference{all[i].FullName() + "/" + text(row[3]), v.objectLink(all[i], text(row[2]), text(row[3]))})
		}
	}
	return found, nil
}

// text is a value of a result: a text without its quotes, and nothing for NULL.
func text(value json.RawMessage) string {
	var decoded *string
	if err := json.Unmarshal(value, &decoded); err != nil {
		return string(value)
	}
	if decoded == nil {
		return ""
	}
	return *decoded
}
