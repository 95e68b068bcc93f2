#!/usr/bin/env perl
# /// orla
# title: CSV to JSON
# description: Reads CSV whose first line names the columns, and gives one object for each row.
# input_schema:
#   csv: string
#   separator: {type: string, minLength: 1, maxLength: 1, default: ","}
# output_schema:
#   type: object
#   properties:
#     rows: {type: array, items: {type: object, additionalProperties: {type: string}}}
#   required: [rows]
# annotations: {readOnlyHint: true, openWorldHint: false}
# ///
use strict;
use warnings;
use JSON::PP;

my $arguments = decode_json(do { local $/; <STDIN> });
my $separator = $arguments->{separator} // ',';
my ($header, @lines) = grep { length } split /\r?\n/, $arguments->{csv};
die "the CSV has no first line that names the columns\n" unless defined $header;

# A field is bare, or quoted with doubled quotes inside; quoted line ends are not supported.
sub fields {
    my ($line) = @_;
    my @fields;
    while ($line =~ /\G(?:"((?:[^"]|"")*)"|([^\Q$separator\E"]*))(?:\Q$separator\E|$)/gc) {
        my $field = defined $1 ? $1 =~ s/""/"/gr : $2;
        push @fields, $field;
        last if pos($line) == length $line && substr($line, -1) ne $separator;
    }
    return @fields;
}

my @names = fields($header);
my @rows = map { my %row; @row{@names} = fields($_); $_ //= '' for values %row; \%row } @lines;
print JSON::PP->new->utf8->canonical->encode({ rows => \@rows });
