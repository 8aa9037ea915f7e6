package console

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
	"sigs.k8s.io/yaml"

	"byre/apiserver/storage/changes"
)

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
		v.forward(get)
		return nil
	case "yaml":
		get.accept = "application/yaml"
		v.forward(get)
		return nil
	}
	var object unstructured.Unstructured
	var about, content g.Node
	err = v.client.get(get, &object.Object)
	exists := err == nil
	switch {
	case exists:
		if about, content, err = v.describe(r, namespace, &object, all); err != nil {
			return err
		}
	case !apierrors.IsNotFound(err):
		return err
	}
	history := v.changes(shownIn(namespace), func(*change) bool { return true }, fields.SelectorFromSet(fields.Set{
		"object.group": r.Group, "object.resource": r.Resource, "object.name": name,
	}))
	isWhole := history.Problem == nil && v.param("since") == ""
	if !exists && len(history.Changes) == 0 && (isWhole || apierrors.IsForbidden(history.Problem)) {
		return &apierrors.StatusError{ErrStatus: failure(http.StatusNotFound, "there is no "+r.FullName()+"/"+name+", and no history of it that you may see")}
	}
	where := g.Group{a(v.tableLink(r, namespace), r.FullName()), labelled(" in ", namespace)}
	if !exists {
		about = g.Group{
			facts(where, g.Text(". "), h.Strong(g.Text("It does not exist."))),
			proposed("To create its last version again:", undelete(r, namespace, name)),
		}
	} else {
		created := object.GetCreationTimestamp().Time
		about = g.Group{
			facts(where, g.Text(", "), v.age(created), g.Text(" old ("+moment(created)+"). "), a(v.here("format", "yaml"), ".yaml"), g.Text(" "), a(v.here("format", "json"), ".json")),
			about,
		}
	}
	v.render(http.StatusOK, name,
		about, h.H2(g.Text("What happened")), v.choices(), history.list(v.change, "No changes."), content)
	return nil
}

// change shows a change of an object, with the fields that it changed.
func (v *visit) change(c change) g.Node {
	var rows g.Group
	for _, f := range c.Changed {
		rows = append(rows, h.Li(h.Code(say(f.Path)), g.Text(": "), g.If(f.Old != "", h.Del(say(f.Old))), g.Text(" "), g.If(f.New != "", h.Ins(say(f.New)))))
	}
	if len(rows) > 0 && c.MoreChanged > 0 {
		rows = append(rows, h.Li(g.Textf("%d more", c.MoreChanged)))
	}
	return g.Group{
		h.P(v.when(&c), c.author(), say(" "+c.Does()), labelled(", by ", c.Manager)),
		g.If(len(rows) > 0, h.Ul(h.Class("fields"), rows)),
		g.If(c.Unreadable, h.P(h.Class("absent"), g.Text("The object can't be read any more."))),
	}
}

// describe shows what the object itself says of what it is in, and what it owns and is.
func (v *visit) describe(r resource, namespace string, object *unstructured.Unstructured, all []resource) (about, content g.Node, err error) {
	var labels, owners g.Group
	for _, key := range slices.Sorted(maps.Keys(object.GetLabels())) {
		label := key + "=" + object.GetLabels()[key]
		link := v.link(url.Values{"namespace": {namespace}, "labelSelector": {label}}, "r", r.groupInPath(), r.Version, r.Resource)
		labels = append(labels, h.A(h.Class("label"), h.Href(link), say(label)), g.Text(" "))
	}
	for _, owner := range object.GetOwnerReferences() {
		owners = append(owners, v.referTo(owner, namespace, all), g.Text(" "))
	}
	inside := v.link(url.Values{"namespace": {object.GetName()}})
	about = g.Group{
		g.If(r.Group == "" && r.Resource == "namespaces", h.P(a(inside, "What is in it"))),
		g.If(len(labels) > 0, h.P(g.Text("Labels: "), labels)),
		g.If(len(owners) > 0, h.P(g.Text("Owned by "), owners)),
	}
	owned, ownedErr := v.owned(namespace, string(object.GetUID()), all)
	why := message(ownedErr)
	unstructured.RemoveNestedField(object.Object, "metadata", "managedFields")
	shown := object.Object
	isSecret := changes.IsSecret(r.Group, r.Resource)
	if isSecret {
		_, shown = changes.MaskSecret(nil, shown)
	}
	text, err := yaml.Marshal(shown)
	content = g.Group{
		h.H2(g.Text("What it controls")), problem(why),
		g.If(len(owned) > 0, h.Ul(g.Map(owned, func(o g.Node) g.Node { return h.Li(o) }))),
		g.If(len(owned) == 0 && why == "", h.P(h.Class("absent"), g.Text("Nothing."))),
		h.H2(g.Text("YAML")), g.If(isSecret, facts(g.Text("The values of Secrets are masked: "), a(v.here("format", "yaml"), ".yaml"), g.Text(" has them."))), h.Pre(say(string(text))),
	}
	return about, content, err
}

// referTo refers to an object that an owner reference names.
func (v *visit) referTo(owner metav1.OwnerReference, namespace string, all []resource) g.Node {
	gv, _ := schema.ParseGroupVersion(owner.APIVersion) // the server has validated it
	link := ""
	i := slices.IndexFunc(all, func(r resource) bool { return r.Group == gv.Group && r.Version == gv.Version && r.Kind == owner.Kind })
	if i >= 0 {
		if !all[i].Namespaced {
			namespace = ""
		}
		link = v.objectLink(all[i], namespace, owner.Name)
	}
	return a(link, owner.Kind+"/"+owner.Name)
}

// mostOwned is how many objects a page shows that an object owns.
const mostOwned = 200

// owned finds the objects whose controller has a UID, by SQL: in the namespace of the owner, or in all if it
// has none.
func (v *visit) owned(namespace, uid string, all []resource) (found []g.Node, err error) {
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
			found = append(found, a(v.objectLink(all[i], text(row[2]), text(row[3])), all[i].FullName()+"/"+text(row[3])))
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
