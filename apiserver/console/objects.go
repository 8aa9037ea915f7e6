package console

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
	"sigs.k8s.io/yaml"

	"byre/apiserver/history"
	"byre/apiserver/query"
	"byre/apiserver/storage/changes"
)

// coreGroup stands for the group without a name in the paths of pages.
const coreGroup = "core"

// resource is a resource of the server, in one version.
type resource struct {
	Group, Version, Resource, Kind string
	Namespaced                     bool
	verbs                          []string
}

// groupInPath is the group in the paths of pages.
func (r resource) groupInPath() string { return cmp.Or(r.Group, coreGroup) }

// FullName is the name as kubectl takes it, such as deployments.apps.
func (r resource) FullName() string {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}.String()
}

// path is the path of the resource's objects in the API; an empty namespace means all.
func (r resource) path(namespace string) string {
	path := "/api/" + r.Version
	if r.Group != "" {
		path = "/apis/" + r.Group + "/" + r.Version
	}
	if namespace != "" && r.Namespaced {
		path += "/namespaces/" + namespace
	}
	return path + "/" + r.Resource
}

// discover returns the resources of the server, each in the version that the server prefers and in the
// others.
func (c *client) discover() (all []resource, err error) {
	for _, path := range []string{"/api", "/apis"} {
		var groups apidiscovery.APIGroupDiscoveryList
		if err := c.get(question{path: path, accept: asGroups}, &groups); err != nil {
			return nil, err
		}
		for _, group := range groups.Items {
			for _, version := range group.Versions {
				for _, r := range version.Resources {
					if r.ResponseKind == nil {
						continue
					}
					all = append(all,
						resource{group.Name, version.Version, r.Resource, r.ResponseKind.Kind, r.Scope == apidiscovery.ScopeNamespace,
							r.Verbs})
				}
			}
		}
	}
	return all, nil
}

// find returns the resource that a path names.
func (v *visit) find() (resource, []resource, error) {
	all, err := v.client.discover()
	if err != nil {
		return resource{}, nil, err
	}
	for _, r := range all {
		if r.groupInPath() == v.r.PathValue("group") && r.Version == v.r.PathValue("version") &&
			r.Resource == v.r.PathValue("resource") {
			return r, all, nil
		}
	}
	return resource{}, nil, v.showNothing()
}

// counted is a resource with the number of its objects.
type counted struct {
	resource
	// Count is a number, or why there is none.
	Count string
	Known bool
}

const (
	countTimeout = 5 * time.Second
	// countersPerPage is how many resources are counted at a time.
	countersPerPage = 4
)

// showResources shows all resources, with the number of objects.
func (v *visit) showResources() error {
	all, err := v.client.discover()
	if err != nil {
		return err
	}
	namespace := v.param("namespace")
	var shown []counted
	known := map[string]bool{}
	for _, r := range all {
		// The first version is the one that the server prefers.
		if known[r.FullName()] || !slices.Contains(r.verbs, "list") || namespace != "" && !r.Namespaced {
			continue
		}
		known[r.FullName()] = true
		shown = append(shown, counted{resource: r})
	}
	slices.SortStableFunc(shown, func(a, b counted) int { return strings.Compare(a.Group, b.Group) })
	ctx, cancel := context.WithTimeout(v.client.from.Context(), countTimeout)
	defer cancel()
	client := &client{v.client.server, v.client.from.WithContext(ctx)}
	var group errgroup.Group
	group.SetLimit(countersPerPage)
	for i := range shown {
		group.Go(func() error {
			shown[i].Count, shown[i].Known = client.count(shown[i].resource, namespace)
			return nil
		})
	}
	_ = group.Wait() // no goroutine returns an error
	v.render(http.StatusOK, "Resources",
		h.Form(h.Method("get"), h.Class("filters"), v.namespaceField(), h.Button(g.Text("Show"))),
		grid(g.Group{h.Th(g.Text("Resource")), h.Th(g.Text("Kind")), h.Th(g.Text("Group")),
			h.Th(h.Class("number"), g.Text("Objects"))},
			g.Map(shown, func(c counted) g.Node {
				return h.Tr(
					h.Td(a(v.tableLink(c.resource, namespace), c.Resource)), h.Td(say(c.Kind)),
					h.Td(say(strings.TrimPrefix(c.Group+"/"+c.Version, "/"))),
					h.Td(h.Class("number"), g.If(c.Known, g.Text(c.Count)),
						g.If(!c.Known, h.Span(h.Class("absent"), h.Title(visible(c.Count)), g.Text("not shown")))))
			})))
	return nil
}

// count returns the number of a resource's objects.
func (c *client) count(r resource, namespace string) (count string, known bool) {
	var list metav1.PartialObjectMetadataList
	err := c.get(question{path: r.path(namespace), query: url.Values{"limit": {"1"}}, accept: asMetadata + "," + asJSON},
		&list)
	switch {
	case err != nil:
		return message(err), false
	case list.RemainingItemCount != nil:
		return strconv.FormatInt(int64(len(list.Items))+*list.RemainingItemCount, 10), true
	case list.Continue != "":
		return "1 or more", true
	}
	return strconv.Itoa(len(list.Items)), true
}

const (
	// rowsPerPage is how many objects a page shows.
	rowsPerPage = 1000
	// rowsPerRequest is how many objects are asked for at once for a download.
	rowsPerRequest = 500
)

// table is a Table of the server, whose rows have the metadata of their objects.
type table struct {
	metav1.ListMeta `json:"metadata"`
	Columns         []metav1.TableColumnDefinition `json:"columnDefinitions"`
	Rows            []row                          `json:"rows"`
}

type row struct {
	Cells  []any                        `json:"cells"`
	Object metav1.PartialObjectMetadata `json:"object"`
}

// cell is the text of a cell.
func cell(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case string:
		return value
	case float64:
		return strconv.FormatFloat(value, 'f', -1, 64)
	}
	return fmt.Sprint(value)
}

// keep keeps the rows in which a text occurs.
func (t *table) keep(text string) {
	if text == "" {
		return
	}
	text = strings.ToLower(text)
	t.Rows = slices.DeleteFunc(t.Rows, func(r row) bool {
		return !strings.Contains(strings.ToLower(r.Object.Namespace), text) &&
			!slices.ContainsFunc(r.Cells, func(value any) bool { return strings.Contains(strings.ToLower(cell(value)), text) })
	})
}

// sort sorts the rows by a column. "Namespace" is the one that the page adds. Ages are compared by the time
// of creation.
func (t *table) sort(column string, descending bool) {
	n := slices.IndexFunc(t.Columns, func(c metav1.TableColumnDefinition) bool { return c.Name == column })
	compare := func(a, b row) int { return compareCells(cell(a.Cells[n]), cell(b.Cells[n])) }
	switch {
	case column == namespaceColumn:
		compare = func(a, b row) int { return cmp.Compare(a.Object.Namespace, b.Object.Namespace) }
	case n < 0:
		return
	case column == "Age":
		compare = func(a, b row) int { return b.Object.CreationTimestamp.Compare(a.Object.CreationTimestamp.Time) }
	}
	slices.SortStableFunc(t.Rows, func(a, b row) int {
		if descending {
			a, b = b, a
		}
		return compare(a, b)
	})
}

const namespaceColumn = "Namespace"

var leadingNumber = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?`)

// compareCells compares numbers that texts begin with, and otherwise the texts.
func compareCells(a, b string) int {
	x, errX := strconv.ParseFloat(leadingNumber.FindString(a), 64)
	y, errY := strconv.ParseFloat(leadingNumber.FindString(b), 64)
	if errX == nil && errY == nil && x != y {
		return cmp.Compare(x, y)
	}
	return cmp.Compare(a, b)
}

// list asks for the objects that the parameters of the page select, as a question without a limit.
func (v *visit) list(r resource, accept string) question {
	query := url.Values{}
	for _, name := range []string{"labelSelector", "fieldSelector", "continue"} {
		if value := v.param(name); value != "" {
			query.Set(name, value)
		}
	}
	return question{path: r.path(v.param("namespace")), query: query, accept: accept}
}

// showTable shows the objects of a resource.
func (v *visit) showTable() error {
	r, _, err := v.find()
	if err != nil {
		return err
	}
	switch v.param("format") {
	case "json":
		v.forward(v.list(r, asJSON))
		return nil
	case "csv":
		return v.writeCSV(r)
	}
	q := v.list(r, asTable)
	q.query.Set("limit", strconv.Itoa(rowsPerPage))
	var t table
	if err := v.client.get(q, &t); err != nil {
		return err
	}
	t.keep(v.param("q"))
	t.sort(v.param("sort"), v.param("desc") != "")
	sql := v.link(url.Values{"q": {"SELECT * FROM " + quoteName(r.FullName()) + " LIMIT 100"}}, "sql")
	heads, rows := v.fill(r, &t)
	v.render(http.StatusOK, r.FullName(),
		h.Form(h.Method("get"), h.Class("filters"),
			g.If(r.Namespaced, v.namespaceField()),
			field("Labels", "labelSelector", v.param("labelSelector"), "app=web"),
			field("Fields", "fieldSelector", v.param("fieldSelector"), "metadata.name=web"),
			field("Text", "q", v.param("q"), ""),
			hidden("sort", v.param("sort")), hidden("desc", v.param("desc")), h.Button(g.Text("Filter"))),
		v.refreshed(
			facts(g.Textf("%d shown, at revision %s", len(rows), t.ResourceVersion), v.next(&t), g.Text(". "),
				a(v.here("format", "csv", "continue", ""), ".csv"), g.Text(" "),
				a(v.here("format", "json", "continue", ""), ".json"), g.Text(" "), a(sql, "SQL")),
			grid(heads, rows,
				g.If(len(rows) == 0,
					h.Tr(h.Td(h.ColSpan(strconv.Itoa(len(heads))), h.Class("absent"), g.Text("There are none."))))),
		))
	return nil
}

// next links to the objects that the page leaves out; nothing if it has all.
func (v *visit) next(t *table) g.Node {
	if t.Continue == "" {
		return nil
	}
	remaining := ptr.Deref(t.RemainingItemCount, 0)
	return g.Group{
		g.Text("; "), a(v.here("continue", t.Continue), "the next page"),
		g.If(remaining > 0, g.Textf(" of %d more", remaining)),
		g.Text("; text and order are of this page"),
	}
}

// quoteName quotes a name of SQL.
func quoteName(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// fill returns the heads and the rows of a table, without those columns that kubectl shows with -o wide.
func (v *visit) fill(of resource, t *table) (heads, rows g.Group) {
	withNamespace := of.Namespaced && v.param("namespace") == ""
	if withNamespace {
		heads = append(heads, v.head(namespaceColumn))
	}
	for _, c := range t.Columns {
		if c.Priority == 0 {
			heads = append(heads, v.head(c.Name))
		}
	}
	for _, r := range t.Rows {
		var cells g.Group
		if withNamespace {
			cells = append(cells, h.Td(say(r.Object.Namespace)))
		}
		to := v.objectLink(of, r.Object.Namespace, r.Object.Name)
		for i, value := range r.Cells {
			if i < len(t.Columns) && t.Columns[i].Priority == 0 {
				cells = append(cells, h.Td(a(to, cell(value))))
				to = "" // the first cell alone
			}
		}
		rows = append(rows, h.Tr(cells))
	}
	return heads, rows
}

// head is the head of a column, which links to the page that is sorted by it.
func (v *visit) head(column string) g.Node {
	switch {
	case v.param("sort") != column:
		return h.Th(a(v.here("sort", column, "desc", ""), column))
	case v.param("desc") == "":
		return h.Th(h.Aria("sort", "ascending"), a(v.here("desc", "1"), column))
	}
	return h.Th(h.Aria("sort", "descending"), a(v.here("sort", "", "desc", ""), column))
}

// writeCSV answers with all objects that the parameters select, in the order of the list, with all columns. It may
// take longer than a page: the server bounds each of its requests.
func (v *visit) writeCSV(r resource) error {
	q := v.list(r, asTable)
	q.query.Set("limit", strconv.Itoa(rowsPerRequest))
	client := &client{v.client.server, v.r}
	out := csv.NewWriter(v.w)
	for first := true; ; first = false {
		v.limitWrites()
		var t table
		if err := client.get(q, &t); err != nil {
			if first {
				return err
			}
			// A broken connection tells the client that rows are missing.
			panic(http.ErrAbortHandler)
		}
		t.keep(v.param("q"))
		if first {
			v.download(r.FullName()+".csv", "text/csv; charset=utf-8")
			record := []string{"namespace", "created"}
			for _, c := range t.Columns {
				record = append(record, strings.ToLower(c.Name))
			}
			_ = out.Write(record) // Error says it
		}
		for _, r := range t.Rows {
			record := []string{r.Object.Namespace, r.Object.CreationTimestamp.UTC().Format(time.RFC3339)}
			for _, value := range r.Cells {
				record = append(record, cell(value))
			}
			_ = out.Write(record) // Error says it
		}
		if out.Flush(); out.Error() != nil || t.Continue == "" {
			return nil // if it failed, the client has gone
		}
		q.query.Set("continue", t.Continue)
	}
}

// download names the file of an answer that is no page.
func (v *visit) download(name, contentType string) {
	v.made()
	v.w.Header().Set("Content-Type", contentType)
	v.w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
}

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
	timeline := v.changes(history.ShownIn(namespace), nil, fields.SelectorFromSet(fields.Set{
		"object.group": r.Group, "object.resource": r.Resource, "object.name": name,
	}))
	isWhole := timeline.Problem == nil && v.param("since") == "" && v.param("until") == ""
	if !exists && len(timeline.Changes) == 0 && (isWhole || apierrors.IsForbidden(timeline.Problem)) {
		return &apierrors.StatusError{ErrStatus: failure(http.StatusNotFound,
			"there is no "+r.FullName()+"/"+name+", and no history of it that you may see")}
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
			facts(where, g.Text(", "), v.age(created), g.Text(" old ("+rfc3339(created)+"). "),
				a(v.here("format", "yaml"), ".yaml"), g.Text(" "), a(v.here("format", "json"), ".json")),
			about,
		}
	}
	v.render(http.StatusOK, name,
		about, h.H2(g.Text("What happened")), v.choices(), timeline.list(v.change, "No changes."), content)
	return nil
}

// change shows a change of an object, with the fields that it changed.
func (v *visit) change(c history.Change) g.Node {
	var rows g.Group
	for _, f := range c.Changed {
		rows = append(rows,
			h.Li(h.Code(say(f.Path)), g.Text(": "), g.If(f.Old != "", h.Del(say(f.Old))), g.Text(" "),
				g.If(f.New != "", h.Ins(say(f.New)))))
	}
	if len(rows) > 0 && c.MoreChanged > 0 {
		rows = append(rows, h.Li(g.Textf("%d more", c.MoreChanged)))
	}
	return g.Group{
		h.P(v.when(&c), author(&c), say(" "+c.FullVerb()), labelled(", by ", c.Manager)),
		g.If(len(rows) > 0, h.Ul(h.Class("fields"), rows)),
		g.If(c.Unreadable, h.P(h.Class("absent"), g.Text("The object can't be read any more."))),
	}
}

// describe shows what the object itself says of what it is in, and what it owns and is.
func (v *visit) describe(
	r resource, namespace string, object *unstructured.Unstructured, all []resource,
) (about, content g.Node, err error) {
	var labels, owners g.Group
	for _, key := range slices.Sorted(maps.Keys(object.GetLabels())) {
		label := key + "=" + object.GetLabels()[key]
		link := v.link(url.Values{"namespace": {namespace}, "labelSelector": {label}}, "r", r.groupInPath(), r.Version,
			r.Resource)
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
		h.H2(g.Text("YAML")),
		g.If(isSecret,
			facts(g.Text("The values of Secrets are masked: "), a(v.here("format", "yaml"), ".yaml"), g.Text(" has them."))),
		h.Pre(say(string(text))),
	}
	return about, content, err
}

// referTo refers to an object that an owner reference names.
func (v *visit) referTo(owner metav1.OwnerReference, namespace string, all []resource) g.Node {
	gv, _ := schema.ParseGroupVersion(owner.APIVersion) // the server has validated it
	link := ""
	i := slices.IndexFunc(all, func(r resource) bool {
		return r.Group == gv.Group && r.Version == gv.Version && r.Kind == owner.Kind
	})
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
	statement, parameters :=
		`SELECT t."group", t.resource, o.namespace, o.name FROM owners o JOIN byre_tables t ON t.table_name = o.resource WHERE o.uid = ?1 AND o.controller`, []string{uid}
	if namespace != "" {
		statement, parameters = statement+" AND o.namespace = ?2", append(parameters, namespace)
	}
	rows, err := v.client.query(statement, mostOwned, parameters...)
	if err != nil {
		return nil, err
	}
	for _, row := range rows.Status.Rows {
		i := slices.IndexFunc(all, func(r resource) bool {
			return r.Group == query.CellText(row[0]) && r.Resource == query.CellText(row[1])
		})
		if i >= 0 {
			namespace, name := query.CellText(row[2]), query.CellText(row[3])
			found = append(found, a(v.objectLink(all[i], namespace, name), all[i].FullName()+"/"+name))
		}
	}
	return found, nil
}
