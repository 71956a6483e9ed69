/* Strict JSON (RFC 8259) to a tree. The text is decoded in place and must live as long as the tree.
 *
 * An object's members are sorted by name, so that the canonical form is the tree written out; the same
 * name twice is refused, and so is a zero character, which no name in a bundle has.
 */

typedef enum aot__type {
  AOT__NULL,
  AOT__BOOL,
  AOT__INT,
  AOT__FLOAT,
  AOT__STRING,
  AOT__ARRAY,
  AOT__OBJECT
} aot__type;

typedef struct aot__json {
  struct aot__json *parent, *child, *next;
  const char *key;    /* of an object's member */
  const char *text;   /* a string, or a float or large integer as it is written */
  size_t count;       /* of children */
  uint64_t magnitude; /* of an integer; of a bool 0 or 1 */
  aot__type type;
  bool negative, large; /* large: the integer does not fit `magnitude` */
} aot__json;

static const char *const aot__type_names[] = {"null",     "a bool",   "an integer", "a float",
                                              "a string", "an array", "an object"};

enum { AOT__MAX_DEPTH = 32 };

typedef struct aot__parser {
  char *start, *at, *end;
  aot__arena *arena;
  const char *where;
  aot_error *error;
  int depth;
} aot__parser;

static bool aot__json_fault(aot__parser *p, const char *fault) {
  aot__fail(p->error, AOT_ERROR_BUNDLE,
            "%s: found %s at byte %zu of the JSON; the file is damaged, build the bundle again", p->where,
            p->at >= p->end ? "the end too early" : fault, (size_t)(p->at - p->start));
  return false;
}

static void aot__spaces(aot__parser *p) {
  while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r')) p->at++;
}

/* The four hexadecimal digits after \u, or -1. */
static int aot__hex4(const aot__parser *p, const char *at) {
  int value = 0, i;
  if (p->end - at < 4) return -1;
  for (i = 0; i < 4; i++) {
    char c = at[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

static char *aot__put_utf8(char *to, unsigned code) {
  if (code < 0x80) {
    *to++ = (char)code;
  } else if (code < 0x800) {
    *to++ = (char)(0xc0 | code >> 6);
    *to++ = (char)(0x80 | (code & 63));
  } else if (code < 0x10000) {
    *to++ = (char)(0xe0 | code >> 12);
    *to++ = (char)(0x80 | (code >> 6 & 63));
    *to++ = (char)(0x80 | (code & 63));
  } else {
    *to++ = (char)(0xf0 | code >> 18);
    *to++ = (char)(0x80 | (code >> 12 & 63));
    *to++ = (char)(0x80 | (code >> 6 & 63));
    *to++ = (char)(0x80 | (code & 63));
  }
  return to;
}

/* Read the escape at p->at, just behind the backslash, and write its character. */
static char *aot__escape(aot__parser *p, char *to) {
  static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
  const char *known = *p->at ? strchr(from, *p->at) : NULL;
  int code, low;
  if (known) {
    p->at++;
    *to++ = into[known - from];
    return to;
  }
  if (*p->at != 'u') return NULL;
  code = aot__hex4(p, p->at + 1);
  if (code <= 0 || (code >= 0xdc00 && code < 0xe000)) return NULL;
  p->at += 5;
  if (code < 0xd800 || code >= 0xe000) return aot__put_utf8(to, (unsigned)code);
  if (p->end - p->at < 6 || p->at[0] != '\\' || p->at[1] != 'u') return NULL;
  low = aot__hex4(p, p->at + 2);
  if (low < 0xdc00 || low >= 0xe000) return NULL;
  p->at += 6;
  return aot__put_utf8(to, 0x10000u + ((unsigned)(code - 0xd800) << 10) + (unsigned)(low - 0xdc00));
}

/* Read the string at p->at, which is its quote; it becomes shorter or stays as it is. */
static const char *aot__json_text(aot__parser *p) {
  char *start = ++p->at, *to = start;
  for (;;) {
    unsigned char c = p->at < p->end ? (unsigned char)*p->at : 0;
    if (c == '"') break;
    if (c < 32) return aot__json_fault(p, "a character that a string cannot have"), (const char *)NULL;
    if (c == '\\') {
      p->at++;
      if (p->at < p->end) to = aot__escape(p, to);
      if (p->at >= p->end || !to) return aot__json_fault(p, "an escape that is none"), (const char *)NULL;
    } else if (c < 128) {
      *to++ = *p->at++;
    } else {
      int n = aot__utf8((const unsigned char *)p->at, (const unsigned char *)p->end);
      if (!n) return aot__json_fault(p, "bytes that are not UTF-8"), (const char *)NULL;
      memmove(to, p->at, (size_t)n);
      to += n;
      p->at += n;
    }
  }
  p->at++;
  *to = 0;
  return start;
}

static bool aot__digits(aot__parser *p) {
  char *start = p->at;
  while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;
  return p->at > start;
}

static bool aot__json_number(aot__parser *p, aot__json *node) {
  char *start = p->at, *digits;
  node->type = AOT__INT;
  if (*p->at == '-') {
    node->negative = true;
    p->at++;
  }
  digits = p->at;
  if (!aot__digits(p)) return aot__json_fault(p, "a character that begins no value");
  if (*digits == '0' && p->at > digits + 1) return aot__json_fault(p, "a number with a leading zero");
  for (; digits < p->at; digits++) {
    unsigned digit = (unsigned)(*digits - '0');
    if (node->magnitude > (UINT64_MAX - digit) / 10) node->large = true;
    node->magnitude = node->magnitude * 10 + digit;
  }
  if (p->at < p->end && *p->at == '.') {
    node->type = AOT__FLOAT;
    p->at++;
    if (!aot__digits(p)) return aot__json_fault(p, "a number without digits behind its point");
  }
  if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
    node->type = AOT__FLOAT;
    p->at++;
    if (p->at < p->end && (*p->at == '+' || *p->at == '-')) p->at++;
    if (!aot__digits(p)) return aot__json_fault(p, "a number without digits in its exponent");
  }
  if (node->type == AOT__INT && !node->large) {
    if (!node->magnitude) node->negative = false;
    return true;
  }
  node->text = aot__copy(p->arena, start, (size_t)(p->at - start));
  if (!node->text) return aot__no_memory(p->error), false;
  if (node->type == AOT__FLOAT && aot__is_inf(aot__double_of(node->text)))
    return aot__json_fault(p, "a number out of range");
  return true;
}

/* Sort a list of `count` members by name. */
static aot__json *aot__sorted(aot__json *list, size_t count) {
  aot__json *right = list, *result = NULL, **end = &result;
  size_t half = count / 2, i;
  if (count < 2) return list;
  for (i = 1; i < half; i++) right = right->next;
  {
    aot__json *second = right->next;
    right->next = NULL;
    right = aot__sorted(second, count - half);
  }
  list = aot__sorted(list, half);
  while (list && right) {
    aot__json **from = strcmp(list->key, right->key) <= 0 ? &list : &right;
    *end = *from;
    end = &(*from)->next;
    *from = *end;
  }
  *end = list ? list : right;
  return result;
}

static bool aot__json_value(aot__parser *p, aot__json *node);

static bool aot__json_children(aot__parser *p, aot__json *node, char close) {
  aot__json **end = &node->child, *child;
  if (++p->depth > AOT__MAX_DEPTH) return aot__json_fault(p, "a value nested too deep");
  p->at++;
  aot__spaces(p);
  if (p->at < p->end && *p->at == close) {
    p->at++;
    p->depth--;
    return true;
  }
  for (;;) {
    child = (aot__json *)aot__take(p->arena, 1, sizeof *child);
    if (!child) return aot__no_memory(p->error), false;
    child->parent = node;
    if (node->type == AOT__OBJECT) {
      aot__spaces(p);
      if (p->at >= p->end || *p->at != '"') return aot__json_fault(p, "no name of a member");
      child->key = aot__json_text(p);
      if (!child->key) return false;
      aot__spaces(p);
      if (p->at >= p->end || *p->at != ':') return aot__json_fault(p, "no colon behind a name");
      p->at++;
    }
    if (!aot__json_value(p, child)) return false;
    *end = child;
    end = &child->next;
    node->count++;
    aot__spaces(p);
    if (p->at < p->end && *p->at == close) break;
    if (p->at >= p->end || *p->at != ',') return aot__json_fault(p, "neither a comma nor the end");
    p->at++;
  }
  p->at++;
  p->depth--;
  if (node->type != AOT__OBJECT) return true;
  node->child = aot__sorted(node->child, node->count);
  for (child = node->child; child->next; child = child->next)
    if (!strcmp(child->key, child->next->key)) return aot__json_fault(p, "the end of an object with a name twice");
  return true;
}

static bool aot__word(aot__parser *p, const char *word) {
  size_t length = strlen(word);
  if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length))
    return aot__json_fault(p, "a character that begins no value");
  p->at += length;
  return true;
}

static bool aot__json_value(aot__parser *p, aot__json *node) {
  aot__spaces(p);
  if (p->at >= p->end) return aot__json_fault(p, "");
  switch (*p->at) {
    case '{': node->type = AOT__OBJECT; return aot__json_children(p, node, '}');
    case '[': node->type = AOT__ARRAY; return aot__json_children(p, node, ']');
    case '"': node->type = AOT__STRING; node->text = aot__json_text(p); return node->text != NULL;
    case 't': node->type = AOT__BOOL; node->magnitude = 1; return aot__word(p, "true");
    case 'f': node->type = AOT__BOOL; return aot__word(p, "false");
    case 'n': return aot__word(p, "null");
    default: return aot__json_number(p, node);
  }
}

/* Parse `size` bytes of `data`, which has one more byte. Return the tree, or NULL with the error. */
static aot__json *aot__json_parse(char *data, size_t size, aot__arena *arena, const char *where, aot_error *error) {
  aot__parser p = {data, data, data + size, arena, where, error, 0};
  aot__json *root = (aot__json *)aot__take(arena, 1, sizeof *root);
  data[size] = 0;
  if (!root) return aot__no_memory(error), (aot__json *)NULL;
  if (!aot__json_value(&p, root)) return NULL;
  aot__spaces(&p);
  if (p.at < p.end) return aot__json_fault(&p, "more behind the value"), (aot__json *)NULL;
  return root;
}

static void aot__hash_text(aot__sha256 *sha, const char *text) {
  static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
  aot__sha256_add(sha, "\"", 1);
  while (*text) {
    size_t plain = 0;
    const char *known;
    while ((unsigned char)text[plain] >= 32 && text[plain] != '"' && text[plain] != '\\') plain++;
    aot__sha256_add(sha, text, plain);
    text += plain;
    if (!*text) break;
    known = strchr(escaped, *text);
    if (known) {
      aot__sha256_add(sha, "\\", 1);
      aot__sha256_add(sha, letters + (known - escaped), 1);
    } else {
      char code[8];
      snprintf(code, sizeof code, "\\u%04x", (unsigned)(unsigned char)*text);
      aot__sha256_add(sha, code, 6);
    }
    text++;
  }
  aot__sha256_add(sha, "\"", 1);
}

/* Hash a tree's canonical form: sorted members, no spaces, numbers as the writer wrote them. */
static void aot__hash_json(aot__sha256 *sha, const aot__json *node) {
  const aot__json *child;
  char number[24];
  switch (node->type) {
    case AOT__NULL: aot__sha256_add(sha, "null", 4); break;
    case AOT__BOOL: aot__sha256_add(sha, node->magnitude ? "true" : "false", node->magnitude ? 4 : 5); break;
    case AOT__FLOAT: aot__sha256_add(sha, node->text, strlen(node->text)); break;
    case AOT__STRING: aot__hash_text(sha, node->text); break;
    case AOT__INT:
      if (node->large) {
        aot__sha256_add(sha, node->text, strlen(node->text));
        break;
      }
      snprintf(number, sizeof number, "%s%llu", node->negative ? "-" : "", (unsigned long long)node->magnitude);
      aot__sha256_add(sha, number, strlen(number));
      break;
    case AOT__ARRAY:
    case AOT__OBJECT:
      aot__sha256_add(sha, node->type == AOT__ARRAY ? "[" : "{", 1);
      for (child = node->child; child; child = child->next) {
        if (child != node->child) aot__sha256_add(sha, ",", 1);
        if (child->key) {
          aot__hash_text(sha, child->key);
          aot__sha256_add(sha, ":", 1);
        }
        aot__hash_json(sha, child);
      }
      aot__sha256_add(sha, node->type == AOT__ARRAY ? "]" : "}", 1);
  }
}
