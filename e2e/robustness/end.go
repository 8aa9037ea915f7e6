package robustness

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"byre/e2e/robustness/history"
	"byre/e2e/robustness/traffic"
)

// readAtEnd lists on every replica, in every encoding, after the last write. The lists
// are checked like all others: they must have every acknowledged write.
func (p *episode) readAtEnd(ctx context.Context) error {
	for _, endpoint := range p.serving() {
		if _, err := traffic.ListAtEnd(ctx, p.recorder, endpoint); err != nil {
			return err
		}
	}
	return nil
}

// compareAtEnd compares the replicas' memory, in every encoding, with each other, with
// the database, and with the stores of all informers.
func (p *episode) compareAtEnd(ctx context.Context, result *Result) []error {
	conn, err := p.Database.connect(ctx)
	if err != nil {
		return []error{err}
	}
	defer conn.Close(ctx)
	stored, err := conn.Objects(ctx, p.namespace)
	if err != nil {
		return []error{err}
	}
	var errs []error
	if result.Informers, err = p.awaitInformers(ctx, p.namespace, stored); err != nil {
		errs = append(errs, err)
	}
	var first []history.Object
	for i, endpoint := range p.serving() {
		// From memory, and exactly at the same revision from the database.
		latest, err := endpoint.Client.List(ctx, traffic.ListOptions{})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		exact, err := endpoint.Client.List(ctx, traffic.ListOptions{Mode: history.Exact, At: latest.Revision})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !slices.Equal(latest.Items, exact.Items) {
			errs = append(errs, fmt.Errorf("%s: latest %+v, exact %+v", endpoint.Name, latest.Items, exact.Items))
		}
		listed := map[string]int64{}
		for _, item := range latest.Items {
			listed[item.Name] = item.Revision
		}
		if !maps.Equal(listed, stored) {
			errs = append(errs, fmt.Errorf("%s: %v; the database has %v", endpoint.Name, listed, stored))
		}
		if i == 0 {
			first = latest.Items
		} else if !slices.Equal(first, latest.Items) {
			errs = append(errs, fmt.Errorf("%s: %+v; %s: %+v", p.serving()[0].Name, first, endpoint.Name, latest.Items))
		}
	}
	return errs
}
