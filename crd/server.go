package crd

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/util/webhook"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"

	"byre/apiserver/discovery"
	"byre/apiserver/endpoints"
	"byre/apiserver/openapi"
	"byre/apiserver/storage"
)

// Config is what New needs. All but Serving and Build are required.
type Config struct {
	// Storage says where objects are kept. Its Scheme, Serializer, Encoding,
	// Prefixes and Cohabitants are of no account: this package brings its own.
	Storage storage.GetterConfig
	// Effective is the version that the server emulates.
	Effective compatibility.EffectiveVersion
	// Serving is what all resources of the server have in common. Its
	// TypeConverter is of no account.
	endpoints.Serving
	// Discovery and OpenAPI are told what is defined.
	Discovery *discovery.Registry
	OpenAPI   *openapi.Service
	// Build identifies the program in the documents of OpenAPI; see
	// openapi.BuildIdentity.
	Build string
	// Loopback reaches the whole server as itself.
	Loopback *restclient.Config
	// ServiceResolver and Authentication are how conversion webhooks are found,
	// and by what the server shows itself to them.
	ServiceResolver webhook.ServiceResolver
	Authentication  webhook.AuthenticationInfoResolverWrapper
}

func (c *Config) check() error {
	switch {
	case c.Effective == nil, c.Discovery == nil, c.OpenAPI == nil, c.Loopback == nil:
		return errors.New("crd: Effective, Discovery, OpenAPI and Loopback are required")
	case c.ServiceResolver == nil, c.Authentication == nil:
		return errors.New("crd: ServiceResolver and Authentication are required")
	default:
		return nil
	}
}

// Server is a handler of definitions and of what they define.
type Server struct {
	codecs      serializer.CodecFactory
	definitions *endpoints.API
	table       *table
	*follower
}

// errUnresolved is all that a client is told when a definition can't be served.
var errUnresolved = errors.New("error resolving resource")

// New makes a Server; requests for what it does not serve go on to next. It
// starts nothing.
func New(c Config, next http.Handler) (*Server, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	converter, err := conversion.NewCRConverterFactory(c.ServiceResolver, c.Authentication)
	if err != nil {
		return nil, fmt.Errorf("crd: conversion webhooks: %w", err)
	}
	own, err := newGroup(c)
	if err != nil {
		return nil, err
	}
	s := &Server{codecs: own.codecs}
	if s.definitions, err = own.api(c, next); err != nil {
		return nil, err
	}
	s.table = &table{
		shared: &shared{scheme: own.scheme, storage: c.Storage, serving: c.Serving, converter: converter, load: own.recent},
		known:  own.known,
		latest: own.latest,
		byName: map[string]*definition{},
	}
	if s.follower, err = newFollower(c, s.table); err != nil {
		return nil, err
	}
	s.table.changed = s.mark
	return s, nil
}
