package aggregator

import "testing"

// TestRootOf_IsTheGroupVersionsPath: a route covers the path of its group version and all
// paths below it, and no other.
func TestRootOf_IsTheGroupVersionsPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/apis/g/v":         "/apis/g/v",
		"/apis/g/v/":        "/apis/g/v",
		"/apis/g/v/x/y":     "/apis/g/v",
		"/apis/g":           "/apis/g",
		"/apis/g/":          "/apis/g/",
		"/apis":             "/apis",
		"/api":              "/api",
		"/api/v1/pods":      "/api",
		"/apix/v1":          "/apix/v1",
		"/apis/g/v1beta1/x": "/apis/g/v1beta1",
		"":                  "",
		"/":                 "/",
	} {
		if got := rootOf(path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}
