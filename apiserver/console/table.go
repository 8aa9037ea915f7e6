package console

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

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

// tablePage is the page of a resource's objects.
type tablePage struct {
	resource
	Columns []header
	Rows    []link
	// Version is the revision of the list. Remaining is how many objects are left out, of which Next
	// has the link to the first ones.
	Version                            string
	Next                               string
	Remaining                          int64
	LabelSelector, FieldSelector, Text string
	Sort, Descending                   string
	CSV, JSON                          string
	SQL                                string
}

type header struct{ Name, Link, Sorted string }

// link is a row, whose cell First links to an object.
type link struct {
	To    string
	First int
	Cells []string
}

// showTable shows the objects of a resource.
func (v *visit) showTable() error {
	r, _, err := v.find()
	if err != nil {
		return err
	}
	switch v.param("format") {
	case "json":
		v.client.forward(v.w, v.list(r, asJSON))
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
	page := tablePage{
		resource: r, Version: t.ResourceVersion, LabelSelector: v.param("labelSelector"), FieldSelector: v.param("fieldSelector"), Text: v.param("q"),
		Sort: v.param("sort"), Descending: v.param("desc"),
		CSV: v.here("format", "csv", "continue", ""), JSON: v.here("format", "json", "continue", ""),
		SQL: v.link(url.Values{"q": {"SELECT * FROM " + quoteName(r.FullName()) + " LIMIT 100"}}, "sql"),
	}
	if t.Continue != "" {
		page.Next = v.here("continue", t.Continue)
		page.Remaining = ptr.Deref(t.RemainingItemCount, 0)
	}
	v.fill(&page, &t)
	v.render(http.StatusOK, r.FullName(), page)
	return nil
}

func (p tablePage) body(v *visit) g.Node {
	shown := g.Group{g.Textf("%d shown, at revision %s", len(p.Rows), p.Version)}
	if p.Next != "" {
		shown = append(shown, g.Text("; "), a(p.Next, "the next page"), g.If(p.Remaining > 0, g.Textf(" of %d more", p.Remaining)), g.Text("; text and order are of this page"))
	}
	return g.Group{
		h.Form(h.Method("get"), h.Class("filters"),
			g.If(p.Namespaced, v.namespaceField()),
			field("Labels", "labelSelector", p.LabelSelector, "app=web"), field("Fields", "fieldSelector", p.FieldSelector, "metadata.name=web"), field("Text", "q", p.Text, ""),
			hidden("sort", p.Sort), hidden("desc", p.Descending), h.Button(g.Text("Filter"))),
		v.refreshed(
			facts(shown, g.Text(". "), a(p.CSV, ".csv"), g.Text(" "), a(p.JSON, ".json"), g.Text(" "), a(p.SQL, "SQL")),
			grid(g.Map(p.Columns, func(c header) g.Node { return h.Th(g.If(c.Sorted != "", h.Aria("sort", c.Sorted)), a(c.Link, c.Name)) }),
				g.Map(p.Rows, link.body),
				g.If(len(p.Rows) == 0, h.Tr(h.Td(h.ColSpan(strconv.Itoa(len(p.Columns))), h.Class("absent"), g.Text("There are none."))))),
		),
	}
}

func (l link) body() g.Node {
	cells := make(g.Group, len(l.Cells))
	for i, text := range l.Cells {
		to := ""
		if i == l.First {
			to = l.To
		}
		cells[i] = h.Td(a(to, text))
	}
	return h.Tr(cells)
}

// quoteName quotes a name of SQL.
func quoteName(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// fill fills in the columns and the rows, without those columns that kubectl shows with -o wide.
func (v *visit) fill(page *tablePage, t *table) {
	withNamespace := page.Namespaced && v.param("namespace") == ""
	if withNamespace {
		page.Columns = append(page.Columns, v.header(namespaceColumn))
	}
	for _, c := range t.Columns {
		if c.Priority == 0 {
			page.Columns = append(page.Columns, v.header(c.Name))
		}
	}
	for _, r := range t.Rows {
		to := link{To: v.objectLink(page.resource, r.Object.Namespace, r.Object.Name)}
		if withNamespace {
			to.First, to.Cells = 1, []string{r.Object.Namespace}
		}
		for i, value := range r.Cells {
			if i < len(t.Columns) && t.Columns[i].Priority == 0 {
				to.Cells = append(to.Cells, cell(value))
			}
		}
		page.Rows = append(page.Rows, to)
	}
}

// header makes the head of a column, which links to the page that is sorted by it.
func (v *visit) header(column string) header {
	switch {
	case v.param("sort") != column:
		return header{column, v.here("sort", column, "desc", ""), ""}
	case v.param("desc") == "":
		return header{column, v.here("desc", "1"), "ascending"}
	}
	return header{column, v.here("sort", "", "desc", ""), "descending"}
}

// writeCSV answers with all objects that the parameters select, in the order of the list, with all columns.
func (v *visit) writeCSV(r resource) error {
	q := v.list(r, asTable)
	q.query.Set("limit", strconv.Itoa(rowsPerRequest))
	out := csv.NewWriter(v.w)
	for first := true; ; first = false {
		var t table
		if err := v.client.get(q, &t); err != nil {
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
	v.w.Header().Set("Content-Type", contentType)
	v.w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
}
