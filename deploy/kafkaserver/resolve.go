package kafkaserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Version is the Apache Kafka that Start runs, unless Options say otherwise.
const Version = "4.3.1"

// The errors of a machine that cannot run Apache Kafka.
var (
	ErrNoJava  = errors.New("no Java to run Apache Kafka with: install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME")
	ErrNoMaven = errors.New("no Maven to resolve Apache Kafka with: install it (Debian: apt-get install maven), or put mvn on PATH")
)

// extra is what a class path has beside the broker and its tools.
type extra string

const (
	none extra = ""
	// tiered is the storage that Kafka's own tests have for the remote tier: a
	// folder.
	tiered extra = "tiered"
	// streams is Kafka Streams with its examples.
	streams extra = "streams"
)

// pom names the broker of a version, its command line tools, a logging backend
// (slf4j 1.7, as Kafka uses), and something extra.
func pom(version string, with extra) string {
	more := ""
	switch with {
	case tiered:
		more = `
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-storage</artifactId><version>` + version + `</version><classifier>test</classifier></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>` + version + `</version><classifier>test</classifier></dependency>`
	case streams:
		more = `
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-streams-examples</artifactId><version>` + version + `</version></dependency>`
	}
	return `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>oncewatch</groupId>
  <artifactId>kafkaserver</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>` + version + `</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>` + version + `</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version></dependency>` + more + `
  </dependencies>
</project>
`
}

// find is what every program of Kafka's is run with.
func find(ctx context.Context, version string, with extra) (java, classpath string, err error) {
	if java, err = findJava(); err != nil {
		return "", "", err
	}
	classpath, err = resolve(ctx, version, with)
	return java, classpath, err
}

func findJava() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		if p, err := exec.LookPath(filepath.Join(home, "bin", "java")); err == nil {
			return p, nil
		}
	}
	p, err := exec.LookPath("java")
	if err != nil {
		return "", ErrNoJava
	}
	return p, nil
}

// resolve returns the broker's class path. Maven's own repository is the cache
// of the files; where they lie is noted beside, so that Maven runs only once.
func resolve(ctx context.Context, version string, with extra) (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	cache := filepath.Join(base, "oncewatch", "kafka-and-tools-"+version)
	if with != none {
		cache += "-" + string(with)
	}
	note := filepath.Join(cache, "classpath")
	if text, err := os.ReadFile(note); err == nil && allThere(string(text)) {
		return string(text), nil
	}
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", ErrNoMaven
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("make a cache for Kafka's class path: %w", err)
	}
	// Several packages' tests may resolve at once: each in a folder of its own,
	// and the result is moved into place whole.
	work, err := os.MkdirTemp(cache, "resolve-")
	if err != nil {
		return "", fmt.Errorf("make a cache for Kafka's class path: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := os.WriteFile(filepath.Join(work, "pom.xml"), []byte(pom(version, with)), 0o644); err != nil {
		return "", err
	}
	out := filepath.Join(work, "classpath")
	cmd := exec.CommandContext(ctx, mvn, "-q", "-B", "-f", filepath.Join(work, "pom.xml"), "dependency:build-classpath", "-Dmdep.outputFile="+out)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("resolve Apache Kafka %s with Maven: %w: %s", version, err, lastLines(text, 5))
	}
	text, err := os.ReadFile(out)
	if err != nil {
		return "", fmt.Errorf("resolve Apache Kafka %s with Maven: %w", version, err)
	}
	classpath := strings.TrimSpace(string(text))
	if !allThere(classpath) {
		return "", fmt.Errorf("resolve Apache Kafka %s with Maven: its class path names files that do not exist: remove %s and Maven's local repository", version, cache)
	}
	if err := os.WriteFile(out, []byte(classpath), 0o644); err != nil {
		return "", err
	}
	if err := os.Rename(out, note); err != nil {
		return "", fmt.Errorf("note Kafka's class path: %w", err)
	}
	return classpath, nil
}

// Tool is a command line tool of Kafka's by its class, such as
// org.apache.kafka.tools.AclCommand for kafka-acls.sh: a command and its first
// arguments.
func Tool(ctx context.Context, class string) ([]string, error) {
	return command(ctx, class, none)
}

// StreamsExample is a program of Kafka Streams' examples by its class, such as
// org.apache.kafka.streams.examples.wordcount.WordCountDemo.
func StreamsExample(ctx context.Context, class string) ([]string, error) {
	return command(ctx, class, streams)
}

func command(ctx context.Context, class string, with extra) ([]string, error) {
	java, classpath, err := find(ctx, Version, with)
	if err != nil {
		return nil, err
	}
	return []string{java, "-cp", classpath, class}, nil
}

func allThere(classpath string) bool {
	for _, jar := range filepath.SplitList(classpath) {
		if _, err := os.Stat(jar); err != nil {
			return false
		}
	}
	return classpath != ""
}
