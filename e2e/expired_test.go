package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"byre/e2e/servers"
	"byre/sqlstore/storetest"
)

// TestHistory_ExpiredIsGone requests history that has been compacted: the answer is 410, and
// that to a list has a token with which the list continues at the current revision.
func TestHistory_ExpiredIsGone(t *testing.T) {
	t.Parallel()
	for _, name := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testExpired(t, startByre(t, openDatabase(t, name), "--retention-changes", "5"))
		})
	}
}

func testExpired(t *testing.T, s *servers.Server) {
	const ns, objects, page = "expired", 30, 10
	c := client(t, s)
	createNamespace(t, c, ns)
	cms := c.CoreV1().ConfigMaps(ns)
	for i := range objects {
		if err := createConfigMap(t.Context(), c, ns, fmt.Sprintf("cm-%02d", i)); err != nil {
			t.Fatal(err)
		}
	}
	first, err := cms.List(t.Context(), metav1.ListOptions{Limit: page})
	if err != nil || first.Continue == "" {
		t.Fatalf("the first page: %v, continue %q", err, first.Continue)
	}
	for i := range 20 {
		if err := createConfigMap(t.Context(), c, ns, fmt.Sprintf("later-%02d", i)); err != nil {
			t.Fatal(err)
		}
	}

	// byre compacts once a minute.
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(storetest.Patience)
	for err == nil {
		_, err = cms.List(t.Context(), metav1.ListOptions{Limit: page, Continue: first.Continue})
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("the continue token has not expired within %v", storetest.Patience)
		}
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsResourceExpired(err) {
		t.Fatalf("an expired token answers: %v", err)
	}
	rest, err := cms.List(t.Context(), metav1.ListOptions{Limit: 500, Continue: status.Status().Continue})
	if err != nil {
		t.Fatalf("the token of the 410: %v", err)
	}
	if want := objects - page; len(rest.Items) < want || rest.Items[0].Name != "cm-10" {
		t.Errorf("the token of the 410 goes on with %d objects from %q", len(rest.Items), rest.Items[0].Name)
	}

	if _, err := cms.List(t.Context(),
		metav1.ListOptions{ResourceVersion: first.ResourceVersion,
			ResourceVersionMatch: metav1.ResourceVersionMatchExact}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a list at a revision that is gone answers: %v", err)
	}
	w, err := cms.Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.ResourceVersion})
	if err == nil {
		event := <-w.ResultChan()
		w.Stop()
		err = apierrors.FromObject(event.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from a revision that is gone answers: %v", err)
	}
}
