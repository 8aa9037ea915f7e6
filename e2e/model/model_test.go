package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// The page has each row that the model reads.
func TestModel_ReadsThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	c, err := readCosts(string(page))
	if err != nil {
		t.Fatal(err)
	}
	for name, cost := range map[string]cost{"create": c.create, "patch": c.patch, "update": c.update,
		"delivery": c.delivery} {
		if cost.server <= cost.store || cost.store <= 0 {
			t.Errorf("%s: %v of the server, %v of the store", name, cost.server, cost.store)
		}
	}
	if c.lockRate < 1000 {
		t.Errorf("the writers' lock carries %v writes a second", c.lockRate)
	}
	if _, err := readCosts("| update Lease | 1 µs |\n"); err == nil ||
		!strings.Contains(err.Error(), `no row "create Pod`) {
		t.Errorf("a page without the rows: %v", err)
	}
}

func TestModel_ComputesWhatAClusterAsks(t *testing.T) {
	// 3,000 nodes with a Pod each that is replaced every 3,000 s: one Pod a second.
	d := cluster{podsPerNode: 1, podLife: 3000 * time.Second}.demand(3000)
	if want := 4 + (2.4 + 10) + (2.6 + 300) + 3; d.writes() != want {
		t.Errorf("%v writes a second, want %v", d.writes(), want)
	}
	if want := 300 + (4+2.4+2.6+3)*5; d.deliveries != want {
		t.Errorf("%v events a second, want %v", d.deliveries, want)
	}
	c := costs{update: cost{server: time.Millisecond, store: 100 * time.Microsecond}, lockRate: 1000}
	server, store := c.processors(demand{updates: 900, deletes: 100})
	if server != 1 || store != 0.1 {
		t.Errorf("%v and %v processors", server, store)
	}
	if table := c.table(defaultCluster); !strings.Contains(table, "| 1000 | 30000 | 0.3 | 108 | 121 |") {
		t.Errorf("the table:\n%s", table)
	}
}
