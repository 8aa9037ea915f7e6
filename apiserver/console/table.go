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
			field("Labels", "labelSelector", v.param("labelSelector"), "app=web"), field("Fields", "fieldSelector", v.param("fieldSelector"), "metadata.name=web"),
			field("Text", "q", v.param("q"), ""),
			hidden("sort", v.param("sort")), hidden("desc", v.param("desc")), h.Button(g.Text("Filter"))),
		v.refreshed(
			facts(g.Textf("%d shown, at revision %s", len(rows), t.ResourceVersion), v.next(&t), g.Text(". "), a(v.here("format", "csv", "continue", ""), ".csv"), g.Text(" "),
				a(v.here("format", "json", "continue", ""), ".json"), g.Text(" "), a(sql, "SQL")),
			grid(heads, rows,
				g.If(len(rows) == 0, h.Tr(h.Td(h.ColSpan(strconv.Itoa(len(heads))), h.Class("absent"), g.Text("There are none."))))),
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
		g.Text("; "), a(v.here("continue", t.Continue), "the next page"), g.If(remaining > 0, g.Textf(" of %d more", remaining)),
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
