package console

import (
	"bytes"
	"net/url"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/duration"
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

// render answers with a page. body is what differs between the pages.
func (v *visit) render(status int, title string, body ...g.Node) {
	user, _ := v.r.Context().Value(userKey{}).(string)
	namespace := url.Values{"namespace": {v.param("namespace")}}
	if in := v.r.PathValue("namespace"); in != "" && in != clusterScoped {
		namespace.Set("namespace", in)
	}
	root := v.root()
	html := h.Doctype(h.HTML(h.Lang("en"),
		h.Head(
			h.Meta(h.Charset("utf-8")),
			h.Meta(h.Name("viewport"), h.Content("width=device-width, initial-scale=1")),
			h.Meta(h.Name("htmx-config"),
				h.Content(`{"includeIndicatorCSS": false, "history": false, "noSwap": [204, 304, "4xx", "5xx"]}`)),
			h.TitleEl(say(title), g.Text(" · byre")),
			h.Link(h.Rel("icon"), h.Href("data:,")),
			h.Link(h.Rel("stylesheet"), h.Href(root+"static/style.css")),
			h.Script(h.Src(root+"static/htmx.min.js"), h.Defer()),
		),
		h.Body(
			h.Header(
				h.Nav(h.Aria("label", "Pages"),
					a(v.link(namespace), "Resources"), g.Text(" "), a(v.link(namespace, "deleted"), "Deleted"), g.Text(" "),
					a(root+"sql", "SQL"), g.Text(" "), a(root+"health", "Health")),
				g.If(user != "", h.Span(h.Class("user"), h.Title("The user whose rights the pages have"), bdi(user))),
			),
			h.Main(h.H1(bdi(title)), g.Group(body)),
		),
	))
	var page bytes.Buffer
	_ = html.Render(&page) // a Buffer does not fail
	v.made()
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(page.Bytes()) // fails only if the client has gone
}

// say is a text, which others may have written.
func say(text string) g.Node { return g.Text(visible(text)) }

// bdi is a text whose direction does not change that of what follows.
func bdi(text string) g.Node { return g.El("bdi", say(text)) }

// a is a link, or only its text if there is nothing to link to.
func a(to, text string) g.Node {
	if to == "" {
		return say(text)
	}
	return h.A(h.Href(to), say(text))
}

// facts is the paragraph that says what a page shows.
func facts(about ...g.Node) g.Node { return h.P(h.Class("facts"), g.Group(about)) }

// problem says why something is not shown; nothing if it is.
func problem(text string) g.Node {
	return g.If(text != "", h.P(h.Class("problem"), say(text)))
}

// labelled is a word before a text that may be absent: then it is absent too.
func labelled(word, text string) g.Node {
	return g.If(text != "", g.Group{g.Text(word), bdi(text)})
}

// field is an input of a form.
func field(label, name, value, placeholder string) g.Node {
	return h.Label(g.Text(label+" "),
		h.Input(h.Name(name), h.Value(value), g.If(placeholder != "", h.Placeholder(placeholder)), h.AutoComplete("off")))
}

// hidden is a parameter of a form that it keeps; nothing if it is empty.
func hidden(name, value string) g.Node {
	return g.If(value != "", h.Input(h.Type("hidden"), h.Name(name), h.Value(value)))
}

// namespaceField is the input for the namespace; empty means all.
func (v *visit) namespaceField() g.Node {
	return field("Namespace", "namespace", v.param("namespace"), "all")
}

// grid is a table, which scrolls by itself.
func grid(head g.Node, body ...g.Node) g.Node {
	return h.Div(h.Class("scroll"), h.Table(h.THead(h.Tr(head)), h.TBody(body...)))
}

// refreshed is a part of a page that is asked for again every 5 s.
func (v *visit) refreshed(rows ...g.Node) g.Node {
	return h.Section(h.ID("rows"), g.Attr("hx-get", v.here()), g.Attr("hx-trigger", "every 5s"),
		g.Attr("hx-select", "#rows"), g.Attr("hx-swap", "outerHTML"), g.Group(rows))
}

func (v *visit) age(t time.Time) g.Node {
	return g.Text(duration.HumanDuration(v.console.config.Now().Sub(t)))
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// ago is how long ago a time is, with the time as its title.
func (v *visit) ago(t time.Time) g.Node {
	return h.Time(h.DateTime(rfc3339(t)), h.Title(rfc3339(t)), v.age(t), g.Text(" ago"))
}

// visible replaces characters that hide or reorder others: control characters but for line breaks and
// tabs, and those of the bidirectional algorithm.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Bidi_Control) {
			return '·'
		}
		return r
	}, text)
}

// quoted is a word of a command, as a POSIX shell reads it.
func quoted(word string) string {
	plain := strings.IndexFunc(word, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_./:@,", r)
	}) < 0
	if plain && word != "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// command is a line for a shell. It is empty if a word has characters that a terminal would act on.
func command(words ...string) string {
	line := make([]string, len(words))
	for i, word := range words {
		if visible(word) != word || strings.ContainsAny(word, "\n\t") {
			return ""
		}
		line[i] = quoted(word)
	}
	return strings.Join(line, " ")
}

// pageURL is the URL of the page that is asked for. Links to other pages are relative to it, because
// a proxy may serve the console below a path of its own.
type pageURL struct{ url *url.URL }

// param is a parameter of the URL's query.
func (u pageURL) param(name string) string { return u.url.Query().Get(name) }

// root is the relative path of the first page.
func (u pageURL) root() string {
	below := strings.TrimPrefix(u.url.EscapedPath(), Path)
	if depth := strings.Count(below, "/"); depth > 0 {
		return strings.Repeat("../", depth)
	}
	return "./"
}

// link makes a relative link to another page. Parameters that are empty are left out.
func (u pageURL) link(query url.Values, segments ...string) string {
	escaped := make([]string, len(segments))
	for i, s := range segments {
		escaped[i] = url.PathEscape(s)
	}
	return u.root() + strings.Join(escaped, "/") + encode(query)
}

// here makes a link to this page with other parameters: pairs of a name and a value.
func (u pageURL) here(pairs ...string) string {
	query := u.url.Query()
	for i := 0; i < len(pairs); i += 2 {
		query.Set(pairs[i], pairs[i+1])
	}
	of := u.url.EscapedPath()
	return "./" + of[strings.LastIndex(of, "/")+1:] + encode(query)
}

// tableLink is the link to the page of a resource's objects.
func (u pageURL) tableLink(r resource, namespace string) string {
	if !r.Namespaced {
		namespace = ""
	}
	return u.link(url.Values{"namespace": {namespace}}, "r", r.groupInPath(), r.Version, r.Resource)
}

// objectLink is the link to the page of an object.
func (u pageURL) objectLink(r resource, namespace, name string) string {
	switch {
	case r.Group == "history.byre.dev":
		return u.link(nil, "change", namespace, name)
	case namespace == "":
		namespace = clusterScoped
	}
	return u.link(nil, "o", r.groupInPath(), r.Version, r.Resource, namespace, name)
}

func encode(query url.Values) string {
	for name, values := range query {
		if len(values) == 0 || values[0] == "" {
			query.Del(name)
		}
	}
	if len(query) == 0 {
		return ""
	}
	return "?" + query.Encode()
}
