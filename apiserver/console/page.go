package console

import (
	"bytes"
	"embed"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/klog/v2"
)

//go:embed templates
var templates embed.FS

// pages are the templates of the pages, by name.
type pages map[string]*template.Template

// parsePages parses the templates: each page with the frame that all have.
func parsePages(now func() time.Time) (pages, error) {
	functions := template.FuncMap{
		"visible": visible,
		"age":     func(t time.Time) string { return duration.HumanDuration(now().Sub(t)) },
		"moment":  func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	}
	files, err := templates.ReadDir("templates")
	if err != nil {
		return nil, err
	}
	all := pages{}
	for _, file := range files {
		page, err := template.New("frame.html").Funcs(functions).ParseFS(templates, "templates/frame.html", path.Join("templates", file.Name()))
		if err != nil {
			return nil, err
		}
		all[strings.TrimSuffix(file.Name(), ".html")] = page
	}
	return all, nil
}

// frame is what every page has.
type frame struct {
	// Root is the relative path of the first page.
	Root, Title, User string
	// Namespace is the one that the user has chosen; empty means all.
	Namespace string
	// Resources and Deleted link to pages of the namespace of this one.
	Resources, Deleted string
	Page               any
}

// render answers with a page.
func (v *visit) render(status int, name, title string, page any) {
	user, _ := v.r.Context().Value(userKey{}).(string)
	namespace := url.Values{"namespace": {v.param("namespace")}}
	if in := v.r.PathValue("namespace"); in != "" && in != clusterScoped {
		namespace.Set("namespace", in)
	}
	var text bytes.Buffer
	err := v.console.pages[name].Execute(&text, frame{
		Root: v.root(), Title: title, User: user, Namespace: v.param("namespace"),
		Resources: v.link(namespace), Deleted: v.link(namespace, "deleted"), Page: page,
	})
	if err != nil {
		klog.ErrorS(err, "A page of the console failed", "path", v.r.URL.Path)
		http.Error(v.w, "500: the page can't be made; the server's log says why", http.StatusInternalServerError)
		return
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(text.Bytes()) // fails only if the client has gone
}

// link makes a relative link to another page. Parameters that are empty are left out.
func (v *visit) link(query url.Values, segments ...string) string {
	escaped := make([]string, len(segments))
	for i, s := range segments {
		escaped[i] = url.PathEscape(s)
	}
	return v.root() + strings.Join(escaped, "/") + encode(query)
}

// here makes a link to this page with other parameters: pairs of a name and a value.
func (v *visit) here(pairs ...string) string {
	query := v.r.URL.Query()
	for i := 0; i < len(pairs); i += 2 {
		query.Set(pairs[i], pairs[i+1])
	}
	of := v.r.URL.EscapedPath()
	return "./" + of[strings.LastIndex(of, "/")+1:] + encode(query)
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
