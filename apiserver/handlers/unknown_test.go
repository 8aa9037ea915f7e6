package handlers_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"byre/sqlstore"
)

// faulty is a driver that fails its next commits as the test says.
type faulty struct {
	sqlstore.Driver
	// failures has one entry for each coming commit; nil lets that commit pass.
	failures []failure
	commits  int
}

type failure struct {
	err error
	// done makes the commit take effect in spite of its error.
	done bool
}

func (f *faulty) Commit(ctx context.Context, batch []sqlstore.Write) ([]sqlstore.Outcome, error) {
	if len(batch) == 0 {
		return f.Driver.Commit(ctx, batch) // the commit by which the store tries the database after a failure
	}
	f.commits++
	if len(f.failures) == 0 {
		return f.Driver.Commit(ctx, batch)
	}
	next := f.failures[0]
	f.failures = f.failures[1:]
	if next.done {
		if _, err := f.Driver.Commit(ctx, batch); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: connection reset", next.err)
}

// TestUnknownOutcome_IsNotRetriedByClients: client-go repeats any request whose answer has
// Retry-After. A write whose outcome is unknown is therefore answered without it, and a
// write that certainly did not happen with it.
func TestUnknownOutcome_IsNotRetriedByClients(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	driver := &faulty{}
	s := newServer(t, func(d sqlstore.Driver) sqlstore.Driver {
		driver.Driver = d
		return driver
	})
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.bytes.URL})
	if err != nil {
		t.Fatal(err)
	}
	maps := client.CoreV1().ConfigMaps("default")
	stored := func() int {
		list, err := maps.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	generated := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "map-"}}

	for _, done := range []bool{false, true} {
		before := stored()
		driver.commits, driver.failures = 0, []failure{{sqlstore.ErrUnknown, done}}
		_, err := maps.Create(t.Context(), generated, metav1.CreateOptions{})
		if delay, suggested := apierrors.SuggestsClientDelay(err); !apierrors.IsTimeout(err) || suggested {
			t.Errorf("create, done %v: %v, delay %d", done, err, delay)
		}
		if driver.commits != 1 || stored() > before+1 {
			t.Errorf("create, done %v: %d commits, %d objects more", done, driver.commits, stored()-before)
		}
	}

	one, err := maps.Create(t.Context(), generated, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for verb, write := range map[string]func() error{
		"patch": func() error {
			_, err := maps.Patch(t.Context(), one.Name, types.MergePatchType, []byte(`{"data":{"a":"1"}}`), metav1.PatchOptions{})
			return err
		},
		"update": func() error {
			changed := one.DeepCopy()
			changed.ResourceVersion, changed.Data = "", map[string]string{"b": "1"}
			_, err := maps.Update(t.Context(), changed, metav1.UpdateOptions{})
			return err
		},
		"delete": func() error { return maps.Delete(t.Context(), one.Name, metav1.DeleteOptions{}) },
		"deletecollection": func() error {
			return maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		},
	} {
		driver.commits, driver.failures = 0, []failure{{err: sqlstore.ErrUnknown}}
		if err := write(); !apierrors.IsTimeout(err) || driver.commits != 1 {
			t.Errorf("%s: %v after %d commits", verb, err, driver.commits)
		}
	}

	// The client repeats a write that was not begun, and it succeeds.
	before := stored()
	driver.commits, driver.failures = 0, []failure{{err: sqlstore.ErrUnavailable}}
	if _, err := maps.Create(t.Context(), generated, metav1.CreateOptions{}); err != nil || driver.commits != 2 || stored() != before+1 {
		t.Errorf("create while the database is unavailable: %v, %d commits, %d objects more", err, driver.commits, stored()-before)
	}
	driver.failures = []failure{{err: sqlstore.ErrUnavailable}}
	resp, body := call{method: http.MethodPost, path: configMaps, body: `{"metadata":{"name":"x"}}`}.answer(t, s.bytes)
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("unavailable: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	driver.failures = []failure{{err: sqlstore.ErrUnknown}}
	resp, body = call{method: http.MethodPost, path: configMaps, body: `{"metadata":{"name":"x"}}`}.answer(t, s.bytes)
	if resp.StatusCode != http.StatusGatewayTimeout || resp.Header.Get("Retry-After") != "" {
		t.Errorf("unknown: %d %v %s", resp.StatusCode, resp.Header, body)
	}
}
