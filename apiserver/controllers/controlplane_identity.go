package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/cryptobyte"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/kubernetes/pkg/controlplane/controller/apiserverleasegc"
	"k8s.io/utils/clock"
)

// Name, label and periods of the identity Lease are upstream's, because tools find the
// Lease by them.
const (
	identityLabel    = "apiserver.kubernetes.io/identity"
	identityName     = "kube-apiserver"
	identityDuration = time.Hour
	identityRenewal  = 10 * time.Second
	identityGCPeriod = time.Hour
)

// upstreamPort is the default of --secure-port.
const upstreamPort = "6443"

// ServerID returns the ID of the server on the given host and port. On the default port it is the
// one that upstream computes, from the host alone; servers on one host would renew one Lease then,
// and each would take the other's renewals for conflicts.
func ServerID(hostname, port string) (string, error) {
	b := cryptobyte.NewBuilder(nil)
	parts := []string{hostname, identityName}
	if port != upstreamPort {
		parts = append(parts, port)
	}
	for _, part := range parts {
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(part)) })
	}
	data, err := b.Bytes()
	if err != nil {
		return "", fmt.Errorf("server identity: %w", err)
	}
	hash := sha256.Sum256(data)
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:16])), nil
}

// runIdentityLease renews the identity Lease until ctx ends, and then deletes it.
func (c *ControlPlane) runIdentityLease(ctx context.Context) {
	controller := lease.NewController(clock.RealClock{}, c.config.Client, c.config.ServerID+"_"+uuid.NewString(),
		int32(identityDuration/time.Second), nil, identityRenewal, c.config.ServerID, metav1.NamespaceSystem, c.setLeaseMetadata)
	// Start first deletes a Lease that an earlier process has left.
	if err := controller.Start(ctx.Done()); err != nil {
		c.config.Logger.Error(err, "Could not start the controller of the identity Lease")
		return
	}
	<-ctx.Done()
	controller.Stop()
}

// setLeaseMetadata sets the labels and annotations of the identity Lease.
func (c *ControlPlane) setLeaseMetadata(identity *coordinationv1.Lease) error {
	set := func(all *map[string]string, key, value string) {
		if *all == nil {
			*all = map[string]string{}
		}
		(*all)[key] = value
	}
	set(&identity.Labels, identityLabel, identityName)
	set(&identity.Labels, corev1.LabelHostname, c.config.Hostname)
	// Upstream does so only with the gate UnknownVersionInteroperabilityProxy. In byre this is where servers that only read
	// send writes, whatever release this one emulates.
	if c.config.PeerAddress != "" {
		set(&identity.Annotations, corev1.AnnotationPeerAdvertiseAddress, c.config.PeerAddress)
	}
	return nil
}

// runIdentityLeaseGC deletes the expired Leases of servers that were killed.
func (c *ControlPlane) runIdentityLeaseGC(ctx context.Context) {
	apiserverleasegc.NewAPIServerLeaseGC(c.config.Client, identityGCPeriod, metav1.NamespaceSystem,
		identityLabel+"="+identityName).RunWithContext(ctx)
}
