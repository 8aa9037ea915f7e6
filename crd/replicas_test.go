package crd_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/migrations"
	"byre/sqlstore/dbtest"
	"byre/sqlstore/postgres/pgtest"
	"byre/sqlstore/storetest"
)

// TestReplicas_ServeWhatIsEstablished runs two servers on one database: a definition that a
// client has seen established on one server is served by the other at once, and so is its
// deletion.
func TestReplicas_ServeWhatIsEstablished(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	if _, err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	a, b := start(t, dbtest.Connect(t, dsn)), start(t, dbtest.Connect(t, dsn))
	for i := range 5 {
		plural := fmt.Sprintf("widgets%d", i)
		path := "/apis/example.com/v1/namespaces/default/" + plural
		text := strings.NewReplacer("widgets", plural, "singular: widget", fmt.Sprintf("singular: widget%d", i),
			"Widget", fmt.Sprintf("Widget%d", i), "[wd]", fmt.Sprintf("[wd%d]", i)).Replace(widgetDefinition)
		crd := a.define(t, text)
		body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget%d","metadata":{"name":"w"},"spec":{"size":3}}`, i)
		if w := b.do(t, http.MethodPost, path, body); w.Code != http.StatusCreated {
			t.Errorf("on the other server: %d %s", w.Code, w.Body)
		}
		definitions := b.definitions.ApiextensionsV1().CustomResourceDefinitions()
		if err := definitions.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		a.await(t, crd.Name, gone)
		for _, s := range []*server{a, b} {
			storetest.Eventually(t, "the end of "+crd.Name, func() bool { return s.do(t, http.MethodGet, path, "").Code == http.StatusNotFound })
		}
	}
}
