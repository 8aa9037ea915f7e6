package console

import (
	"net/url"
	"strings"
)

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
