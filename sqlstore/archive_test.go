package sqlstore

import (
	"testing"
	"time"
)

// The most specific name decides the age. An age that is not longer than
// Options.Retention archives nothing.
func TestArchiveAge_OfTheMostSpecificName(t *testing.T) {
	t.Parallel()
	named := func(group, resource string, age time.Duration) ResourceRetention {
		return ResourceRetention{GroupResource{group, resource}, age}
	}
	retentions := []ResourceRetention{
		named("", "*", 48*time.Hour), named("", "leases", 5*time.Minute), named("apps", "deployments", 90*24*time.Hour),
		named("", "events", 72*time.Hour), named("events.k8s.io", "events", time.Hour), named("", "secrets", -1),
	}
	for _, test := range []struct {
		of        GroupResource
		retention time.Duration
		age       time.Duration
		ok        bool
	}{
		{GroupResource{"apps", "deployments"}, 24 * time.Hour, 90 * 24 * time.Hour, true},
		{GroupResource{"example.com", "deployments"}, 24 * time.Hour, 48 * time.Hour, true},
		{GroupResource{"coordination.k8s.io", "leases"}, 24 * time.Hour, 5 * time.Minute, false},
		{GroupResource{"coordination.k8s.io", "leases"}, time.Minute, 5 * time.Minute, true},
		{GroupResource{"", "events"}, 24 * time.Hour, 72 * time.Hour, true},
		{GroupResource{"events.k8s.io", "events"}, 24 * time.Hour, time.Hour, false},
		{GroupResource{"", "secrets"}, 24 * time.Hour, -1, true},
		{GroupResource{"", "pods"}, -1, 48 * time.Hour, true},
	} {
		o := Options{Retention: test.retention, RetentionFor: retentions}
		if age, ok := o.archiveAge(test.of); age != test.age || ok != test.ok {
			t.Errorf("%v beside %v: %v, %v; want %v, %v", test.of, test.retention, age, ok, test.age, test.ok)
		}
	}
	if _, ok := (&Options{}).archiveAge(GroupResource{"", "pods"}); ok {
		t.Error("archived without an option")
	}
}
